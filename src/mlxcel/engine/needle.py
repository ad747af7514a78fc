"""Following one string through a text that arrives in pieces."""

from __future__ import annotations


class Needle:
    """Progress of a string through a text (Knuth, Morris and Pratt 1977): constant work a character.

    text: what is looked for, not empty.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        """Length of the longest beginning of `text` that the text so far ends with."""
        self._fallback = [0] * (len(text) + 1)  # for each length: that of the longest shorter beginning it ends with
        for end in range(1, len(text)):
            self._fallback[end + 1] = self._next(self._fallback[end], text[end])

    def advance(self, character: str) -> bool:
        """Read the next character; True when it completes the first match. After that, `restart` before the next."""
        self.matched = self._next(self.matched, character)
        return self.matched == len(self.text)

    def restart(self) -> None:
        """Forget what was read."""
        self.matched = 0

    def _next(self, matched: int, character: str) -> int:
        while matched and self.text[matched] != character:
            matched = self._fallback[matched]
        return matched + (self.text[matched] == character)
