"""An answer that somebody listens to while it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mlxcel.chat.answer import AnswerPart, AnswerStream
from mlxcel.chat.stream import MessagePart, MessageStream
from mlxcel.chat.tools import ToolCall, ToolStream
from mlxcel.engine.events import FinishReason, StopKind, TextPiece


class Overheard(NamedTuple):
    """A complete answer as its client has it."""

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...] = ()

    @property
    def message(self) -> dict[str, Any]:
        """The assistant message that a client sends back, without reasoning."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.calls
            ]
        return message


class OverheardStream(AnswerStream):
    """An answer stream that tells of its answer once that has ended, unless it ended with an error.

    ended: called with the content, the reasoning and the calls that were shown.
    """

    def __init__(
        self,
        message: MessageStream,
        tools: ToolStream | None = None,
        *,
        forced: bool = False,
        ended: Callable[[Overheard], None],
    ) -> None:
        super().__init__(message, tools, forced=forced)
        self._ended = ended
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def feed(self, piece: TextPiece) -> list[AnswerPart]:
        """Parts that are certain after the next piece."""
        return self._overhear(super().feed(piece))

    def finish(self, reason: FinishReason, kind: StopKind = StopKind.EOS, stop: str | None = None) -> list[AnswerPart]:
        """The last parts."""
        parts = self._overhear(super().finish(reason, kind, stop))
        if reason is not FinishReason.ERROR:
            self._ended(Overheard("".join(self._content), "".join(self._reasoning), self.calls))
        return parts

    def _overhear(self, parts: list[AnswerPart]) -> list[AnswerPart]:
        texts = [part for part in parts if isinstance(part, MessagePart)]
        self._content += [part.content for part in texts]
        self._reasoning += [part.reasoning for part in texts]
        return parts
