"""From the engine's text to the parts of an assistant message.

A message that is not streamed is made by the same code, from all of the text: it equals the joined parts.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mlxcel.chat.reasoning import Kind, Reader, Segment
from mlxcel.engine.events import TextPiece, TokenLogprob


class ReasoningFormat(enum.StrEnum):
    """Where reasoning is shown, in the words of llama-server."""

    SPLIT = "deepseek"
    """In a field of its own."""
    BOTH = "deepseek-legacy"
    """There, and in the content with its markers."""
    CONTENT = "none"
    """In the content with its markers."""


@dataclass(frozen=True, slots=True)
class MessagePart:
    """What a piece adds to a message. Both texts may be empty when only `logprobs` are new."""

    content: str = ""
    reasoning: str = ""
    answer: bool = False
    """The content is what the model says, in which calls may stand; else it is markup or reasoning that is shown."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Entries of the tokens whose text ends here, shown or not: each token has one in exactly one part."""


class MessageStream:
    """The parts of one answer.

    Entries wait for the text of their tokens. Where the text is not shown there is a part for every one of them, so
    that clients which count parts do not lose their place.
    """

    def __init__(self, reader: Reader, reasoning_format: ReasoningFormat) -> None:
        self._reader = reader
        self._format = reasoning_format
        self._fed = 0  # characters that came in
        self._read = 0  # characters that came out, shown or not
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # (end of the piece, entry)
        self._thought = False
        self._answered = False

    @property
    def reasoning_only(self) -> bool:
        """Whether all of the text so far was reasoning: some was, and there is no content."""
        return self._thought and not self._answered

    def feed(self, piece: TextPiece) -> list[MessagePart]:
        """Parts that are certain after the next piece."""
        self._fed += len(piece.text)
        self._waiting.extend((self._fed, entry) for entry in piece.logprobs)
        return self._parts(self._reader.feed(piece.text))

    def finish(self) -> list[MessagePart]:
        """The last parts."""
        return self._parts(self._reader.finish())

    def _parts(self, segments: Iterable[Segment]) -> list[MessagePart]:
        parts: list[MessagePart] = []
        for segment in segments:
            self._read += len(segment.raw)
            content, reasoning = self._shown(segment)
            self._answered = self._answered or bool(content)
            self._thought = self._thought or segment.kind is not Kind.CONTENT
            if content or reasoning:
                answer = segment.kind is Kind.CONTENT
                parts.append(MessagePart(content, reasoning, answer, tuple(self._due())))
            else:
                parts += [MessagePart(logprobs=(entry,)) for entry in self._due()]
        return parts + [MessagePart(logprobs=(entry,)) for entry in self._due()]

    def _shown(self, segment: Segment) -> tuple[str, str]:
        """Content and reasoning of a segment."""
        reasoning = segment.text if segment.kind is Kind.REASONING else ""
        match self._format:
            case ReasoningFormat.SPLIT:
                return "" if reasoning else segment.text, reasoning
            case ReasoningFormat.BOTH:
                return segment.raw, reasoning
            case ReasoningFormat.CONTENT:
                return segment.raw, ""

    def _due(self) -> list[TokenLogprob]:
        due: list[TokenLogprob] = []
        while self._waiting and self._waiting[0][0] <= self._read:
            due.append(self._waiting.popleft()[1])
        return due
