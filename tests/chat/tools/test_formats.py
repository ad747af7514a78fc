"""Every format: its table of answers, whole, cut in two at every place, and in random pieces."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.chat.tools import CallArguments, CallStart, Delta, Dialect, ToolStream, whole
from mlxcel.engine.events import TextPiece
from tests.chat.tools.cases import ALL, FORMATS, TOOLS, Case


def _ids(case: tuple[str, Case]) -> str:
    return f"{case[0]}: {case[1].name}"


def _stream(case: Case, pieces: Iterable[str]) -> tuple[ToolStream, list[Delta]]:
    numbers = itertools.count()
    stream = ToolStream(TOOLS, case.dialect, new_id=lambda: f"call_{next(numbers)}")
    deltas = [delta for piece in pieces for delta in stream.feed(TextPiece(piece))]
    return stream, [*deltas, *stream.finish(case.reason)]


def _check(case: Case, pieces: Iterable[str]) -> None:
    stream, deltas = _stream(case, pieces)
    message = stream.message
    assert message.content == case.content
    assert [(call.name, call.arguments) for call in message.calls] == list(case.calls)
    assert message.finish_reason == case.finish_reason
    assert len(message.abandoned) == case.abandoned
    _check_deltas(stream, deltas)


def _check_deltas(stream: ToolStream, deltas: list[Delta]) -> None:
    """What was streamed, joined, is the message."""
    content = ""
    started: list[CallStart] = []
    arguments: dict[int, str] = {}
    for delta in deltas:
        if isinstance(delta, TextPiece):
            assert delta.text
            content += delta.text
        elif isinstance(delta, CallStart):
            assert delta.index == len(started)
            started.append(delta)
            arguments[delta.index] = ""
        else:
            assert isinstance(delta, CallArguments)
            assert delta.text
            assert delta.index == len(started) - 1, "calls come one after the other"
            arguments[delta.index] += delta.text
            delta.text.encode()  # whole characters only
    message = stream.message
    abandoned = {call.id for call in message.abandoned}
    assert content == message.content
    assert [(start.id, start.name, arguments[start.index]) for start in started if start.id not in abandoned] == [
        (call.id, call.name, call.arguments) for call in message.calls
    ]


def test_every_format_has_its_table() -> None:
    assert FORMATS.keys() == set(Dialect)
    assert all(len(cases) >= 15 for cases in FORMATS.values())


@pytest.mark.parametrize("case", ALL, ids=_ids)
def test_whole(case: tuple[str, Case]) -> None:
    _check(case[1], [case[1].text])
    message = whole(case[1].text, TOOLS, case[1].dialect, case[1].reason)
    assert (message.content, len(message.calls)) == (case[1].content, len(case[1].calls))


@pytest.mark.parametrize("case", ALL, ids=_ids)
def test_cut_in_two_at_every_place(case: tuple[str, Case]) -> None:
    text = case[1].text
    for position in range(1, len(text)):
        _check(case[1], [text[:position], text[position:]])


@pytest.mark.parametrize("case", ALL, ids=_ids)
def test_one_character_at_a_time(case: tuple[str, Case]) -> None:
    _check(case[1], case[1].text)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_pieces(name: str, data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(FORMATS[name]))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(case.text) - 1)), max_size=12)))
    _check(case, [case.text[start:end] for start, end in itertools.pairwise([0, *cuts, len(case.text)])])


@pytest.mark.parametrize("case", ALL, ids=_ids)
def test_the_dialect_of_the_format_changes_nothing(case: tuple[str, Case]) -> None:
    name, expected = case
    if name == "generic_json" or expected.dialect is not None:
        return
    message = whole(expected.text, TOOLS, Dialect(name), expected.reason)
    assert (message.content, [(call.name, call.arguments) for call in message.calls]) == (
        expected.content,
        list(expected.calls),
    )
