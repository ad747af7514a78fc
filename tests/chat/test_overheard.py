from __future__ import annotations

import pytest

from mlxcel.chat.answer import AnswerStream
from mlxcel.chat.dialects import THINK
from mlxcel.chat.overheard import Overheard, OverheardStream
from mlxcel.chat.reasoning import make_reader
from mlxcel.chat.stream import MessagePart, MessageStream, ReasoningFormat
from mlxcel.chat.tools import Dialect, ToolCall, ToolSet, ToolStream
from mlxcel.engine.events import FinishReason, TextPiece

PIECES = (
    "<think>hm ",
    "hm</think>\n\nY",
    'es.\n<tool_call>\n{"name": "f", "argu',
    'ments": {"a": 1}}\n</tool_call>\n',
    '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>',
)


def message(style: ReasoningFormat) -> MessageStream:
    return MessageStream(make_reader(THINK, calls=True), style)


def tools() -> ToolStream:
    numbers = iter(range(9))
    return ToolStream(ToolSet({"f": {}, "g": {}}), Dialect.HERMES, new_id=lambda: f"call_{next(numbers)}")


@pytest.mark.parametrize("style", list(ReasoningFormat))
def test_it_is_the_same_stream_and_tells_what_was_shown_once_it_has_ended(style: ReasoningFormat) -> None:
    told: list[Overheard] = []
    stream = OverheardStream(message(style), tools(), ended=told.append)
    plain = AnswerStream(message(style), tools())
    parts = [part for text in PIECES for part in stream.feed(TextPiece(text))]
    assert not told
    parts += stream.finish(FinishReason.STOP)
    expected = [part for text in PIECES for part in plain.feed(TextPiece(text))]
    assert parts == expected + plain.finish(FinishReason.STOP)
    texts = [part for part in parts if isinstance(part, MessagePart)]
    content, reasoning = "".join(part.content for part in texts), "".join(part.reasoning for part in texts)
    calls = (ToolCall("call_0", "f", '{"a": 1}'), ToolCall("call_1", "g", "{}"))
    assert told == [Overheard(content, reasoning, calls)]


def test_an_answer_that_failed_is_not_told() -> None:
    told: list[Overheard] = []
    stream = OverheardStream(message(ReasoningFormat.SPLIT), ended=told.append)
    stream.feed(TextPiece("Yes."))
    stream.finish(FinishReason.ERROR)
    assert not told


def test_the_message_is_what_a_client_sends_back() -> None:
    assert Overheard("Yes.", "hm").message == {"role": "assistant", "content": "Yes."}
    assert Overheard("", "hm", (ToolCall("call_0", "f", '{"a": 1}'),)).message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
    }
