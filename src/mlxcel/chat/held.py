"""An answer that is held to a rule: a JSON schema, or calls that are forced."""

from __future__ import annotations

from mlxcel.chat.dialects import Lead
from mlxcel.chat.reasoning import Kind, Reader, Segment
from mlxcel.engine.needle import Needle


class HeldReader:
    """Reads what comes before the answer with another reader. The answer itself is content as it stands: the rule has
    let nothing else through, and what looks like a marker is part of a string in it.

    lead: what comes before; None: nothing.
    """

    def __init__(self, reader: Reader, lead: Lead | None) -> None:
        self._reader = reader
        self._opening = "" if lead is None else lead.opening or ""
        self._end = None if lead is None else Needle(lead.close)
        self._held = ""
        self._beside = lead is not None

    def feed(self, text: str) -> list[Segment]:
        """The next piece."""
        if self._end is None:
            return self._answer(text)
        self._held += text
        if self._opening[: len(self._held)] != self._held[: len(self._opening)]:
            self._beside, self._end = False, None  # it has been left out
            return self._answer(self._held)
        if len(self._held) < len(self._opening):
            return []
        text, self._held, self._opening = self._held, "", ""
        length = next((end for end, char in enumerate(text, 1) if self._end.advance(char)), None)
        segments = self._reader.feed(text[:length])
        if length is None:
            return segments
        self._end = None
        return [*segments, *self._reader.finish(), *self._answer(text[length:])]

    def finish(self) -> list[Segment]:
        """The end of the text."""
        return [] if self._end is None else [*self._reader.feed(self._held), *self._reader.finish()]

    def _answer(self, text: str) -> list[Segment]:
        body = text.lstrip() if self._beside else text
        space = text[: len(text) - len(body)]
        self._beside = self._beside and not body
        return [
            *([Segment(Kind.MARKUP, "", space)] if space else []),
            *([Segment(Kind.CONTENT, body, body)] if body else []),
        ]
