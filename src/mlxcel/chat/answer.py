"""From the engine's text to everything that an assistant message holds: content, reasoning and tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from mlxcel.chat.stream import MessagePart, MessageStream
from mlxcel.chat.tools import CallArguments, CallStart, Delta, ToolCall, ToolStream
from mlxcel.engine.events import FinishReason, StopKind, TextPiece

AnswerPart = MessagePart | CallStart | CallArguments
"""What one more piece of text adds to a message."""


class AnswerStream:
    """The parts of one answer, as they become certain.

    The parts' content and reasoning, joined, and `calls` are the message, however the text is cut.
    """

    def __init__(self, message: MessageStream, tools: ToolStream | None = None, *, forced: bool = False) -> None:
        """tools: reads the calls; None: there are none, and nothing is taken for one. forced: there has to be one."""
        self._message = message
        self._tools = tools
        self._forced = forced
        self.calls: tuple[ToolCall, ...] = ()
        """The complete calls, once `finish` was called."""
        self.finish_reason = FinishReason.ERROR.value
        """Why the answer ended, once `finish` was called."""
        self.problem: str | None = None
        """What somebody who runs the server may want to know of the answer, once `finish` was called."""

    @property
    def reasoning_only(self) -> bool:
        """Whether all of the text was reasoning: some was, and there is neither content nor a call."""
        return self._message.reasoning_only and not self.calls

    def feed(self, piece: TextPiece) -> list[AnswerPart]:
        """Parts that are certain after the next piece."""
        return self._read(self._message.feed(piece))

    def finish(self, reason: FinishReason, kind: StopKind = StopKind.EOS, stop: str | None = None) -> list[AnswerPart]:
        """The last parts. kind, stop: what ended the answer, and the stop string if that did."""
        parts = self._read(self._message.finish())
        self.finish_reason = reason.value
        if self._tools is not None:
            parts += map(_part, self._tools.finish(reason, kind, stop))
            message = self._tools.message
            self.calls, self.finish_reason = message.calls, message.finish_reason
            if message.abandoned:
                self.problem = "the answer holds a tool call that is malformed or cut off"
            elif self._forced and not message.calls:
                self.problem = "tool_choice asks for a tool call, and the answer holds none"
        return parts

    def _read(self, parts: Iterable[MessagePart]) -> list[AnswerPart]:
        if self._tools is None:
            return list(parts)
        read: list[AnswerPart] = []
        for part in parts:
            # Log probabilities keep their order: behind those that are held back there they wait, too.
            shown = bool(part.reasoning) or (bool(part.content) and not part.answer)
            if shown and not self._tools.waiting:
                read.append(part)
                continue
            if shown:
                read.append(replace(part, logprobs=()))
            text = "" if shown else part.content
            read += map(_part, self._tools.feed(TextPiece(text, part.logprobs)))
        return read


def _part(delta: Delta) -> AnswerPart:
    if isinstance(delta, TextPiece):
        return MessagePart(delta.text, answer=True, logprobs=tuple(delta.logprobs))
    return delta
