"""Reasoning, content and calls of one answer, however its text is cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.chat.answer import AnswerStream
from mlxcel.chat.dialects import HARMONY, THINK
from mlxcel.chat.reasoning import make_reader
from mlxcel.chat.stream import MessagePart, MessageStream, ReasoningFormat
from mlxcel.chat.tools import CallArguments, Dialect, ToolSet, ToolStream
from mlxcel.engine.events import FinishReason, TextPiece, TokenChoice, TokenLogprob

TOOLS = ToolSet({"f": {}, "g": {}})
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
HARMONY_CALL = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
    '<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
)
ANSWERS: list[tuple[str, str, tuple[Any, ...]]] = [
    ("think", f"<think>a {CALL} b</think>So.\n{CALL}", ("So.", f"a {CALL} b", [("f", '{"a": 1}')])),
    ("think", f"{CALL}<think>late</think>", ("", "late", [("f", '{"a": 1}')])),
    ("think", f"So <tool<think>late</think>{CALL}", ("So <tool", "late", [("f", '{"a": 1}')])),
    ("think", "<think>only", ("", "only", [])),
    ("think", 'x <tool_call>{"name": "h", "arguments": {}}</tool_call>', ("x", "", [])),
    ("harmony", HARMONY_CALL, ("Wait.", "hm", [("f", '{"a": 1}')])),
    ("harmony", "<|channel|>final<|message|>Yes.", ("Yes.", "", [])),
]


def stream(family: str, format: ReasoningFormat = ReasoningFormat.SPLIT) -> AnswerStream:
    harmony = family == "harmony"
    reader = make_reader(HARMONY if harmony else THINK, calls=True)
    return AnswerStream(
        MessageStream(reader, format), ToolStream(TOOLS, Dialect.HARMONY if harmony else Dialect.HERMES)
    )


def read(
    answer: AnswerStream, pieces: Sequence[TextPiece]
) -> tuple[str, str, list[tuple[str, str]], list[TokenLogprob]]:
    parts = [part for piece in pieces for part in answer.feed(piece)] + answer.finish(FinishReason.STOP)
    texts = [part for part in parts if isinstance(part, MessagePart)]
    calls = [(call.name, call.arguments) for call in answer.calls]
    streamed = "".join(part.text for part in parts if isinstance(part, CallArguments))
    assert streamed == "".join(arguments for _, arguments in calls)
    return (
        "".join(part.content for part in texts),
        "".join(part.reasoning for part in texts),
        calls,
        [entry for part in texts for entry in part.logprobs],
    )


@pytest.mark.parametrize(("family", "text", "expected"), ANSWERS)
def test_cut_anywhere(family: str, text: str, expected: tuple[Any, ...]) -> None:
    for cut in range(len(text)):
        answer = stream(family)
        assert read(answer, [TextPiece(text[:cut]), TextPiece(text[cut:])])[:3] == expected
        assert answer.finish_reason == ("tool_calls" if expected[2] else "stop")
        assert answer.reasoning_only is (expected[:1] == ("",) and not expected[2])
        assert answer.problem is None


@given(st.sampled_from(ANSWERS), st.lists(st.integers(1, 9), min_size=1))
@settings(max_examples=150)
def test_every_token_has_its_entry_once_and_in_order(answer: tuple[Any, ...], sizes: list[int]) -> None:
    family, text, _ = answer
    pieces: list[TextPiece] = []
    while text:
        size = sizes[len(pieces) % len(sizes)]
        entry = TokenLogprob(TokenChoice(len(pieces), "", b"", -1.0), ())
        pieces.append(TextPiece(text[:size], (entry,)))
        text = text[size:]
    assert [entry.chosen.token_id for entry in read(stream(family), pieces)[3]] == list(range(len(pieces)))


def test_reasoning_that_is_shown_is_content_and_no_place_for_calls() -> None:
    content, reasoning, calls, _ = read(stream("think", ReasoningFormat.CONTENT), [TextPiece(ANSWERS[0][1])])
    assert (content, reasoning) == (f"<think>a {CALL} b</think>So.", "")
    assert calls == [("f", '{"a": 1}')]


def test_what_went_wrong_is_told() -> None:
    forced = AnswerStream(MessageStream(make_reader(THINK), ReasoningFormat.SPLIT), ToolStream(TOOLS), forced=True)
    read(forced, [TextPiece("No.")])
    assert forced.problem == "tool_choice asks for a tool call, and the answer holds none"
    cut = stream("think")
    cut.feed(TextPiece(CALL + CALL[:-20]))
    cut.finish(FinishReason.LENGTH)
    assert cut.problem == "the answer holds a tool call that is malformed or cut off"
    assert (len(cut.calls), cut.finish_reason) == (1, "length")
