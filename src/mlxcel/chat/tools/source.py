"""Text that arrives in pieces, as the readers of tool calls see it.

A reader is a generator. It asks for text with the methods below, each of which waits (yields) until its answer can no
longer depend on text that has not arrived. So a reader is written as if the whole text were there, and what it finds
does not depend on how the text was cut.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Generator
from typing import TypeVar

_T = TypeVar("_T")
Reading = Generator[None, None, _T]
"""A reader: yields when it needs more text, returns a `_T`."""

SPACE = re.compile(r"\s*")


class NotACall(Exception):
    """What looked like the beginning of a call is ordinary text. The text goes back."""


@functools.cache
def alternatives(literals: tuple[str, ...]) -> re.Pattern[str]:
    """Matches any of `literals`, the longest where several begin at one place."""
    return re.compile("|".join(re.escape(literal) for literal in sorted(literals, key=len, reverse=True)))


@functools.cache
def beginnings(literals: tuple[str, ...]) -> frozenset[str]:
    """All proper, non-empty beginnings of `literals`."""
    return frozenset(literal[:length] for literal in literals for length in range(1, len(literal)))


class Source:
    """A text under way, with a reading position and one place to go back to."""

    def __init__(self) -> None:
        self.text = ""
        """What is at hand. Positions before `pos` may disappear at the next `feed`."""
        self.pos = 0
        self.ended = False
        """No more text will come."""
        self.cut = False
        """The text ended because the budget did, not because the model was done. Known once `ended`."""
        self._before = 0  # characters of the stream before text[0]
        self._mark: int | None = None  # where to go back to: an index into `text`, or 0 with `_kept` before it
        self._kept: list[str] = []  # text from the mark on that has left `text`
        self._kept_length = 0
        self.on_commit: Callable[[], None] = lambda: None

    @property
    def offset(self) -> int:
        """Reading position in the whole stream."""
        return self._before + self.pos

    @property
    def settled(self) -> int:
        """Position in the stream before which nothing will be read again."""
        if self._mark is None:
            return self.offset
        return self._before + self._mark - self._kept_length

    def feed(self, text: str) -> None:
        """Add text."""
        if self.pos:
            if self._mark is not None:
                self._kept.append(self.text[self._mark : self.pos])
                self._kept_length += self.pos - self._mark
                self._mark = 0
            self._before += self.pos
            self.text = self.text[self.pos :]
            self.pos = 0
        self.text += text

    def end(self, *, cut: bool) -> None:
        """Say that no more text will come."""
        self.ended = True
        self.cut = cut

    def mark(self) -> None:
        """Make this the place that `rewind` goes back to."""
        self._forget()
        self._mark = self.pos

    def commit(self) -> None:
        """Give up the mark: what was read since belongs to a call, whatever comes."""
        if self._mark is not None:
            self._forget()
            self.on_commit()

    def rewind(self) -> None:
        """Go back to the mark, and give it up."""
        if self._mark is None:
            raise RuntimeError("there is no mark to go back to")
        kept = "".join(self._kept)
        if kept:
            self.text = kept + self.text
            self._before -= len(kept)
            self._mark = 0
        self.pos = self._mark
        self._forget()

    def _forget(self) -> None:
        self._mark = None
        self._kept.clear()
        self._kept_length = 0

    @property
    def committed(self) -> bool:
        """Whether there is no mark."""
        return self._mark is None

    def more(self) -> Reading[bool]:
        """Wait for text after all that is at hand. False: there is none."""
        length = len(self.text) - self.pos
        while not self.ended and len(self.text) - self.pos <= length:
            yield
        return len(self.text) - self.pos > length

    def peek(self) -> Reading[str]:
        """The next character, "" at the end."""
        while self.pos == len(self.text):
            if not (yield from self.more()):
                return ""
        return self.text[self.pos]

    def take(self, pattern: re.Pattern[str], out: Callable[[str], object] | None = None) -> Reading[None]:
        """Read characters as long as they match `pattern`, which must match any number of characters one by one."""
        while True:
            end = _end(pattern, self.text, self.pos)
            if out is not None and end > self.pos:
                out(self.text[self.pos : end])
            self.pos = end
            if end < len(self.text) or not (yield from self.more()):
                return

    def word(self, pattern: re.Pattern[str], limit: int = 256) -> Reading[str]:
        """Read at most `limit` characters that match `pattern` one by one."""
        while True:
            length = min(_end(pattern, self.text, self.pos) - self.pos, limit)
            at_end = self.pos + length == len(self.text)
            if not at_end or length == limit or not (yield from self.more()):
                word = self.text[self.pos : self.pos + length]
                self.pos += length
                return word

    def space(self) -> Reading[None]:
        """Read whitespace."""
        yield from self.take(SPACE)

    def sees(self, *literals: str) -> Reading[str]:
        """Which of `literals` comes next ("" for none). It is not read."""
        longest = max(map(len, literals))
        while True:
            ahead = self.text[self.pos : self.pos + longest]
            if len(ahead) == longest or self.ended or not (not ahead or ahead in beginnings(literals)):
                break
            yield from self.more()
        found = alternatives(literals).match(ahead)
        return found.group() if found else ""

    def takes(self, *literals: str) -> Reading[str]:
        """As `sees`, and read it."""
        found = yield from self.sees(*literals)
        self.pos += len(found)
        return found

    def ends_within(self, *literals: str) -> bool:
        """Whether the text has ended, and what is left could have become one of `literals`. After `sees` or `takes`."""
        left = self.text[self.pos :]
        return self.ended and any(literal.startswith(left) for literal in literals)

    def until(self, *literals: str, out: Callable[[str], object] | None = None) -> Reading[str]:
        """Read up to the first of `literals` and say which it is; it is not read. "" at the end of the text.

        out: gets the text before it, piece by piece.
        """
        pattern, openings = alternatives(literals), beginnings(literals)
        longest = max(map(len, literals))
        while True:
            found = pattern.search(self.text, self.pos)
            end = len(self.text) if found is None else found.start()
            if not self.ended:
                end = held_from(self.text, end, max(self.pos, len(self.text) - longest + 1), openings)
            waits = found is None or end < found.start() or (not self.ended and self.text[end:] in openings)
            if out is not None and end > self.pos:
                out(self.text[self.pos : end])
            self.pos = end
            if not waits and found is not None:
                return found.group()
            if self.ended:
                return ""
            yield from self.more()

    def skip(self, *literals: str) -> Reading[None]:
        """Read up to the first of `literals`, or to the end."""
        if literals:
            yield from self.until(*literals)
        else:
            self.pos = len(self.text)
            while (yield from self.more()):
                self.pos = len(self.text)

    def text_until(self, *literals: str) -> Reading[tuple[str, str]]:
        """As `until`, with the text before: (text, literal)."""
        parts: list[str] = []
        found = yield from self.until(*literals, out=parts.append)
        return "".join(parts), found


def held_from(text: str, end: int, start: int, openings: frozenset[str]) -> int:
    """The first position from `start` on, before `end`, from which the rest of `text` could begin a literal; else
    `end`."""
    for position in range(start, end):
        if text[position:] in openings:
            return position
    return end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    found = pattern.match(text, start)
    return start if found is None else found.end()
