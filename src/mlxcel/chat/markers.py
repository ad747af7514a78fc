"""Finding markers in a text that arrives in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable


class Markers:
    """A set of strings to look for. The earliest one counts, and of several that begin there the longest."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(set(texts), key=len, reverse=True)
        self._first = re.compile("|".join(sorted({re.escape(text[0]) for text in self._texts})) or r"(?!)")

    def find(self, text: str, *, final: bool) -> tuple[int, str | None]:
        """How much of `text` lies before the first marker, and the marker; None: the rest may still become one.

        final: nothing follows. What is found does not depend on how a text was cut into calls, if each call begins
        with what the one before left.
        """
        for match in self._first.finditer(text):
            start = match.start()
            if not final and self._may_grow(text, start):
                return start, None
            for marker in self._texts:
                if text.startswith(marker, start):
                    return start, marker
        return len(text), None

    def _may_grow(self, text: str, start: int) -> bool:
        """Whether more text could complete a marker at `start`, or a longer one than the text has there now."""
        left = len(text) - start
        return any(len(marker) > left and marker.startswith(text[start:]) for marker in self._texts)
