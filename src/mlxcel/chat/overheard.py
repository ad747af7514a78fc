"""An answer that somebody listens to while it is written."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.chat.reasoning import Reader
from mlxcel.chat.stream import MessagePart, MessageStream, ReasoningFormat
from mlxcel.engine.events import TextPiece


class OverheardStream(MessageStream):
    """A message stream that tells of its answer once that has ended.

    ended: called with the content and the reasoning that were shown.
    """

    def __init__(self, reader: Reader, reasoning_format: ReasoningFormat, ended: Callable[[str, str], None]) -> None:
        super().__init__(reader, reasoning_format)
        self._ended = ended
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def feed(self, piece: TextPiece) -> list[MessagePart]:
        """Parts that are certain after the next piece."""
        return self._overhear(super().feed(piece))

    def finish(self) -> list[MessagePart]:
        """The last parts."""
        parts = self._overhear(super().finish())
        self._ended("".join(self._content), "".join(self._reasoning))
        return parts

    def _overhear(self, parts: list[MessagePart]) -> list[MessagePart]:
        self._content += [part.content for part in parts]
        self._reasoning += [part.reasoning for part in parts]
        return parts
