"""What holds for every text: the pieces do not matter, markup is not shown, tokens and entries stay one to one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.chat.tools import (
    CallArguments,
    CallStart,
    Delta,
    Dialect,
    Message,
    ToolSet,
    ToolStream,
    chat_id,
    item_id,
    messages_id,
    responses_id,
    whole,
)
from mlxcel.chat.tools.markers import SPECIAL, STRAY
from mlxcel.engine.events import FinishReason, StopKind, TextPiece, TokenChoice, TokenLogprob
from tests.chat.tools.cases import ALL, TOOLS, Case

_FRAGMENTS = sorted(
    {
        *SPECIAL,
        *STRAY,
        *("<function=now>", "</function>", "<parameter=a>", "</parameter>", '<invoke name="now">', "</invoke>"),
        *('<parameter name="a">', "<response>", "</response>", "\n>>>now\n", "\n>>>all\n", "[now(", ")]", "a=1", ","),
        *("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "commentary to=now", "final", "analysis"),
        *("Action: now\n", "Action Input: ", "[ARGS]", "call:now{", "a:1", '<|"|>', "<escape>", "functions.now:0"),
        *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call_argument_begin|>", "now", "rm"),
        *('{"name": "now", "arguments": ', '{"name": "rm", "parameters": ', '{"name": "now"', "{", "}", "{}", "[", "]"),
        *('"', "\\", "\\u", "\\ud83d", "null", "true", "1", ":", "'", "é", "😀", " ", "\n", "text ", "<", "<|", "]<]"),
        *("<city>", "</city>", "to=", ";"),
    }
)
_HOSTILE = st.lists(st.sampled_from(_FRAGMENTS), max_size=25)
_REASONS = st.sampled_from([FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR])


def _run(
    pieces: Sequence[TextPiece], dialect: Dialect | None, reason: FinishReason, tools: ToolSet = TOOLS
) -> tuple[Message, list[Delta]]:
    numbers = itertools.count()
    stream = ToolStream(tools, dialect, new_id=lambda: f"call_{next(numbers)}")
    deltas = [delta for piece in pieces for delta in stream.feed(piece)]
    deltas += stream.finish(reason)
    return stream.message, deltas


def _content(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextPiece))


def _arguments(deltas: Sequence[Delta]) -> dict[int, str]:
    joined: dict[int, str] = {}
    for delta in deltas:
        if isinstance(delta, CallStart):
            joined[delta.index] = ""
        elif isinstance(delta, CallArguments):
            joined[delta.index] += delta.text
    return joined


@settings(max_examples=400, deadline=None)
@given(fragments=_HOSTILE, dialect=st.sampled_from([None, *Dialect]), reason=_REASONS, data=st.data())
def test_pieces_do_not_matter(
    fragments: list[str], dialect: Dialect | None, reason: FinishReason, data: st.DataObject
) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=10)))
    pieces = [TextPiece(text[start:end]) for start, end in itertools.pairwise([0, *cuts, len(text)])]
    expected, at_once = _run([TextPiece(text)], dialect, reason)
    for other in (pieces, [TextPiece(character) for character in text]):
        message, deltas = _run(other, dialect, reason)
        assert message == expected
        assert _content(deltas) == expected.content
        assert _arguments(deltas) == _arguments(at_once)


@settings(max_examples=400, deadline=None)
@given(fragments=_HOSTILE, reason=_REASONS)
def test_special_markers_are_never_shown(fragments: list[str], reason: FinishReason) -> None:
    # Harmony shows other formats' markers as plain text.
    text = "".join(fragment for fragment in fragments if fragment != "<|message|>")
    message, _ = _run([TextPiece(text)], None, reason)
    # A half marker before a whole one changes which characters belong together.
    if not re.search(r"<\|?<|\]<\]\]", text):
        assert not [mark for mark in (*SPECIAL, *STRAY) if mark in message.content]


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab \n.,:;é😀<>|/=_()\\", max_size=40), reason=_REASONS)
def test_text_without_markers_is_content(text: str, reason: FinishReason) -> None:
    message, _ = _run([TextPiece(text)], None, reason)
    if ">>>" not in text:
        assert message == Message(text, (), reason.value)


def _entry(text: str) -> TokenLogprob:
    return TokenLogprob(TokenChoice(0, text, text.encode(), -0.5), ())


def _tokens(text: str, sizes: Sequence[int]) -> list[TextPiece]:
    pieces: list[TextPiece] = []
    position = 0
    for size in itertools.cycle(sizes):
        if position >= len(text):
            return pieces
        token = text[position : position + size]
        pieces.append(TextPiece(token, (_entry(token),)))
        position += size
    return pieces


@pytest.mark.parametrize("sizes", [(1,), (3,), (1, 4, 2), (7,)])
@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case[0]}: {case[1].name}")
def test_every_token_has_its_entry(case: tuple[str, Case], sizes: tuple[int, ...]) -> None:
    expected = case[1]
    tokens = _tokens(expected.text, sizes)
    message, deltas = _run(tokens, expected.dialect, expected.reason)
    pieces = [delta for delta in deltas if isinstance(delta, TextPiece)]
    assert [entry for piece in pieces for entry in piece.logprobs] == [token.logprobs[0] for token in tokens]
    assert _content(deltas) == message.content == expected.content
    assert all(piece.text or len(piece.logprobs) == 1 for piece in pieces), "a hidden token has a piece of its own"


def test_hidden_tokens_are_given_while_the_call_comes_in() -> None:
    stream = ToolStream(TOOLS, new_id=lambda: "call_0")
    tokens = _tokens('Hi <tool_call>{"name": "now", "arguments": {"a": 1}}</tool_call>', (5,))
    for token in tokens[:8]:
        shown = [piece for piece in stream.feed(token) if isinstance(piece, TextPiece)]
    assert [piece.text for piece in shown] == [""]
    assert shown[0].logprobs == tokens[7].logprobs


def test_a_token_that_is_half_shown_goes_with_its_text() -> None:
    message, deltas = _run(_tokens("one<tool_call>{}</tool_call> two", (6,)), None, FinishReason.STOP)
    pieces = [
        (delta.text, [entry.chosen.text for entry in delta.logprobs])
        for delta in deltas
        if isinstance(delta, TextPiece)
    ]
    assert pieces == [
        *(
            ("one", ["one<to"]),
            ("", ["ol_cal"]),
            ("", ["l>{}</"]),
            ("", ["tool_c"]),
            (" t", ["all> t"]),
            ("wo", ["wo"]),
        ),
    ]
    assert message.content == "one two"


def test_entries_without_text_are_given_at_once() -> None:
    stream = ToolStream(TOOLS)
    assert stream.feed(TextPiece("", (_entry(""),))) == [TextPiece("", (_entry(""),))]


def test_names_and_arguments_come_as_they_are_written() -> None:
    stream = ToolStream(TOOLS, new_id=lambda: "call_0")
    assert stream.feed(TextPiece('Hm.\n<tool_call>{"name": "get_wea')) == [TextPiece("Hm.")]
    assert stream.feed(TextPiece('ther", "arguments": ')) == []
    assert stream.feed(TextPiece('{"city": "O')) == [
        CallStart(0, "call_0", "get_weather"),
        CallArguments(0, '{"city": "O'),
    ]
    assert stream.feed(TextPiece('slo"}')) == [CallArguments(0, 'slo"}')]
    assert stream.feed(TextPiece("}</tool_call> So.")) == []
    assert stream.finish(FinishReason.STOP) == []


_STREAMED = {
    "hermes": '<tool_call>{"name": "send", "arguments": {"text": "',
    "mistral_nemo": '[TOOL_CALLS] [{"name": "send", "arguments": {"text": "',
    "mistral_bracketed": '[TOOL_CALLS]send[ARGS]{"text": "',
    "llama3": '{"name": "send", "parameters": {"text": "',
    "llama3 with its tag": '<|python_tag|>{"name": "send", "parameters": {"text": "',
    "qwen3_coder": "<tool_call>\n<function=send>\n<parameter=text>\n",
}


@pytest.mark.parametrize("name", _STREAMED)
def test_formats_that_are_to_stream_do(name: str) -> None:
    stream = ToolStream(TOOLS)
    deltas = stream.feed(TextPiece(_STREAMED[name]))
    assert [type(delta) for delta in deltas] == [CallStart, CallArguments]
    for word in ("one", " two", " three"):
        deltas += stream.feed(TextPiece(word))
    assert _arguments(deltas)[0].replace(" ", "") == '{"text":"onetwothree'


@pytest.mark.parametrize(
    ("held", "more"),
    [
        *(
            ("<tool_c", "!"),
            ("<|", "!"),
            ("[TOOL_", "!"),
            ("x\n>>", "!"),
            ("]<]mini", "!"),
            ("Action", "!"),
            ("[no", "!"),
        ),
        *(("<function=no", "<"), ('{"na', 'tion": '), ('{"name": "x"', ', "y": '), ("[ ", "1"), ("<response> ", "!")),
    ],
)
def test_what_may_begin_a_call_is_held_back_and_released(held: str, more: str) -> None:
    stream = ToolStream(TOOLS)
    shown = _content(stream.feed(TextPiece(held)))
    assert shown in ("", "x")
    assert (shown + _content(stream.feed(TextPiece(more + "?")))).startswith((held + more).rstrip("<"))


def test_released_at_the_end() -> None:
    stream = ToolStream(TOOLS)
    assert _content(stream.feed(TextPiece("a <tool"))) == "a"
    assert _content(stream.finish(FinishReason.STOP)) == " <tool"


def test_ids_stay_and_indices_count() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>' * 2
    numbers = itertools.count()
    stream = ToolStream(TOOLS, new_id=lambda: f"id_{next(numbers)}")
    starts = [delta for piece in text for delta in stream.feed(TextPiece(piece)) if isinstance(delta, CallStart)]
    stream.finish(FinishReason.STOP)
    assert starts == [CallStart(0, "id_0", "now"), CallStart(1, "id_1", "now")]
    assert [call.id for call in stream.message.calls] == ["id_0", "id_1"]


def test_an_abandoned_call_is_named() -> None:
    message, _ = _run([TextPiece('<tool_call>{"name": "now", "arguments": {')], None, FinishReason.LENGTH)
    assert message == Message("", (), "length", (CallStart(0, "call_0", "now"),))


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ERROR])
def test_only_a_natural_end_becomes_tool_calls(reason: FinishReason) -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    assert whole(text, TOOLS, reason=reason).finish_reason == reason.value
    assert whole(text, TOOLS).finish_reason == "tool_calls"


_OPEN_CALLS = {
    "qwen3_coder": ("<tool_call><function=send><parameter=text>rm -r /tmp/", "</function>"),
    "minimax_m2": ('<invoke name="send"><parameter name="text">/tmp/</parameter>', "</invoke>"),
    "glm47": ("<tool_call>send<arg_key>text</arg_key><arg_value>/tmp/</arg_value>", "</tool_call>"),
    "kimi_k2": (
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.send:0<|tool_call_argument_begin|>{"text": "/tmp/',
        "<|tool_call_end|>",
    ),
    "mistral_bracketed": ('[TOOL_CALLS]send[ARGS]{"text": "/tmp/', None),
    "harmony": ('<|channel|>commentary to=functions.send<|message|>{"text": "/tmp/', None),
}


@pytest.mark.parametrize("name", _OPEN_CALLS)
def test_a_call_that_something_else_cut_off_is_none(name: str) -> None:
    text, closing = _OPEN_CALLS[name]
    dialect = Dialect(name)
    ends = [
        *((FinishReason.STOP, StopKind.WORD, "old"), (FinishReason.STOP, StopKind.NONE, None)),
        *((FinishReason.ERROR, StopKind.NONE, None), (FinishReason.LENGTH, StopKind.LIMIT, None)),
    ]
    for reason, kind, stop in ends:
        stream = ToolStream(TOOLS, dialect)
        stream.feed(TextPiece(text))
        stream.finish(reason, kind, stop)
        assert (stream.message.calls, stream.message.finish_reason) == ((), reason.value), kind
    if closing is not None:
        stream = ToolStream(TOOLS, dialect)
        stream.feed(TextPiece(text))
        stream.finish(FinishReason.STOP, StopKind.WORD, f"\n{closing}")
        assert stream.message.finish_reason == "tool_calls"


@pytest.mark.parametrize("case", ALL[::7], ids=lambda case: f"{case[0]}: {case[1].name}")
def test_without_tools_nothing_is_read(case: tuple[str, Case]) -> None:
    assert whole(case[1].text, ToolSet({})) == Message(case[1].text, (), "stop")


def test_without_tools_harmony_is_still_unpacked() -> None:
    text = "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|><tool_call> Hi"
    assert whole(text, ToolSet({}), Dialect.HARMONY).content == "<tool_call> Hi"


def test_a_named_choice_takes_no_other_calls() -> None:
    tools = ToolSet({"a": {}, "b": {}}, only="b")
    text = '<tool_call>{"name": "%s", "arguments": {}}</tool_call>'
    message = whole(text % "a" + text % "x.b", tools)
    assert [call.name for call in message.calls] == ["b"]


def test_tools_of_a_request() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string"}}}
    for tool in (
        {"type": "function", "function": {"name": "f", "parameters": schema}},
        {"type": "function", "name": "f", "parameters": schema},
    ):
        tools = ToolSet.of_request([tool, {"type": "function", "function": {"name": "bare"}}])
        assert tools.properties("ns.f") == {"x": {"type": "string"}}
        assert tools.properties("bare") == tools.properties("none") == {}
        assert (tools.accept("bare"), tools.accept("none"), bool(tools)) == ("bare", None, True)
    assert not ToolSet.of_request([])


def test_more_calls_than_the_limit_are_dropped() -> None:
    message = whole('<tool_call>{"name": "now", "arguments": {}}</tool_call>' * 1100, TOOLS)
    assert len(message.calls) == 1024
    assert message.content == ""


@pytest.mark.parametrize(
    ("make", "prefix", "digits"),
    [(chat_id, "call_", 24), (responses_id, "call_", 16), (item_id, "fc_", 16), (messages_id, "toolu_", 16)],
)
def test_ids(make: object, prefix: str, digits: int) -> None:
    ids = {make() for _ in range(100)}  # type: ignore[operator]
    assert len(ids) == 100
    for value in ids:
        assert value.startswith(prefix)
        int(value.removeprefix(prefix), 16)
        assert len(value) == len(prefix) + digits
