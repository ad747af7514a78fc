"""Splits what a model writes into reasoning, answer and markup.

A reader takes the text in pieces and gives segments; joined, their `raw` texts are the text. The segments do not
depend on where the text is cut, except that one may come in several parts. White space beside markup belongs to it.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Protocol

from mlxcel.chat.dialects import DIALECTS, HARMONY, THINK, Dialect
from mlxcel.chat.markers import Markers

_SPACE = " \t\r\n"


class Kind(enum.Enum):
    """What a segment is."""

    CONTENT = "content"
    REASONING = "reasoning"
    MARKUP = "markup"


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a model's text."""

    kind: Kind
    text: str
    """What is shown of it; empty for markup."""
    raw: str
    """What the model wrote."""


class Reader(Protocol):
    """Takes a model's text in pieces."""

    def feed(self, text: str) -> list[Segment]:
        """The next piece; returns what is certain by now."""
        ...

    def finish(self) -> list[Segment]:
        """The end of the text; returns the rest."""
        ...


def make_reader(dialect: Dialect | None, *, inside: bool = False, calls: bool = False) -> Reader:
    """A reader of one answer.

    dialect: of the model; None: unknown, then an answer that begins with reasoning shows it.
    inside: the prompt has opened a block.
    calls: tool calls that are part of the dialect itself, as in Harmony, are left in the content as they are written,
        for whoever reads calls there.
    """
    if dialect is None:
        return _Guesser(calls)
    if dialect is HARMONY:
        return _HarmonyReader(inside, calls)
    return _BlockReader(dialect, inside)


class PlainReader:
    """All of it is content."""

    def feed(self, text: str) -> list[Segment]:
        """The piece as it is."""
        return [Segment(Kind.CONTENT, text, text)] if text else []

    def finish(self) -> list[Segment]:
        """Nothing was held back."""
        return []


class _Output:
    """Collects segments, and gives the white space beside markup to it.

    beside: the text begins right after markup.
    """

    def __init__(self, beside: bool) -> None:
        self._segments: list[Segment] = []
        self._beside = beside
        self._space = ""  # at the end of what was given out, and not known to be beside markup
        self._kind = Kind.CONTENT
        self._said = False
        self._join = False

    def take(self) -> list[Segment]:
        segments, self._segments = self._segments, []
        return segments

    def text(self, kind: Kind, text: str) -> None:
        """More text of a kind; between two kinds there is markup."""
        if self._beside:
            text, space = text.lstrip(_SPACE), text[: len(text) - len(text.lstrip(_SPACE))]
            if space:
                self._add(Kind.MARKUP, "", space)
        if not text:
            return
        self._beside, self._kind = False, kind
        whole = self._space + text
        body = whole.rstrip(_SPACE)
        self._space = whole[len(body) :]
        if body:
            self._show(kind, body)

    def markup(self, raw: str) -> None:
        """Something that is not shown."""
        self._add(Kind.MARKUP, "", self._space + raw)
        self._space, self._beside = "", True

    def call(self, text: str, raw: str) -> None:
        """Content that is to stay exactly as it is."""
        if self._space:
            self.markup("")
        self._add(Kind.CONTENT, text, raw)
        self._beside = True

    def new_message(self) -> None:
        """What follows of content begins a line."""
        self._join = self._said

    def finish(self) -> None:
        """Nothing follows: white space at the end is text."""
        if self._space:
            self._show(self._kind, self._space)
        self._space = ""

    def _show(self, kind: Kind, text: str) -> None:
        separator = ""
        if kind is Kind.CONTENT:
            separator = "\n" if self._join else ""
            self._said, self._join = True, False
        self._add(kind, separator + text, text)

    def _add(self, kind: Kind, text: str, raw: str) -> None:
        self._segments.append(Segment(kind, text, raw))


class _BlockReader:
    """Families that put their reasoning between two markers."""

    def __init__(self, dialect: Dialect, inside: bool, *, opening: bool = True) -> None:
        self._dialect = dialect
        self._markers = Markers(dialect.markers if opening else dialect.closes)
        self._kind = Kind.REASONING if inside else Kind.CONTENT
        self._held = ""
        self._out = _Output(beside=inside)

    def feed(self, text: str) -> list[Segment]:
        self._held += text
        self._read(final=False)
        return self._out.take()

    def finish(self) -> list[Segment]:
        self._read(final=True)
        self._out.finish()
        return self._out.take()

    def _read(self, *, final: bool) -> None:
        marker: str | None = ""
        while marker is not None:
            position, marker = self._markers.find(self._held, final=final)
            self._out.text(self._kind, self._held[:position])
            self._held = self._held[position + len(marker or "") :]
            if marker is not None:
                self._out.markup(marker)
                if marker in self._dialect.opens:
                    self._kind = Kind.REASONING
                elif marker in self._dialect.closes:
                    self._kind = Kind.CONTENT


class _Place(enum.Enum):
    """Where in a list of Harmony messages a text stands."""

    START = "start"
    """The prompt has begun a header, and nothing is known of the rest of it."""
    BETWEEN = "between"
    HEADER = "header"
    BODY = "body"


class _HarmonyReader:
    """Messages on channels: a header, `<|message|>`, a body, and a marker that ends it.

    The channel `analysis` is reasoning; `final` and `commentary` are content, one message a line; others are dropped. A
    message to a recipient is a tool call, which is content too.
    """

    _MARKERS = Markers(("<|start|>", "<|channel|>", "<|message|>", *HARMONY.closes, *HARMONY.strays))
    _ENDS = ("<|end|>", "<|return|>", "<|call|>")
    _RECIPIENT = "to="
    _TO = re.compile(r"\bto=[^\s<]")
    _CHANNEL = re.compile(r"<\|channel\|>\s*([^\s<]*)")

    def __init__(self, inside: bool, calls: bool) -> None:
        self._calls = calls
        self._place = _Place.BODY if inside else _Place.START
        self._kind = Kind.REASONING
        self._calling = False
        self._header = ""
        self._held = ""
        self._out = _Output(beside=inside)

    def feed(self, text: str) -> list[Segment]:
        self._held += text
        self._read(final=False)
        return self._out.take()

    def finish(self) -> list[Segment]:
        self._read(final=True)
        if self._place is _Place.START:
            self._out.text(Kind.CONTENT, self._header)
        elif self._header:
            self._out.markup(self._header)
        self._out.finish()
        return self._out.take()

    def _read(self, *, final: bool) -> None:
        marker: str | None = ""
        while marker is not None:
            position, marker = self._MARKERS.find(self._held, final=final)
            text, self._held = self._held[:position], self._held[position + len(marker or "") :]
            if text:
                self._text(text)
            if marker is not None:
                self._marker(marker)

    def _text(self, text: str) -> None:
        match self._place:
            case _Place.START:
                self._header += text
                begun = self._header.lstrip(" ")
                if not (begun.startswith(self._RECIPIENT) or self._RECIPIENT.startswith(begun)):
                    self._place = _Place.BETWEEN
                    self._out.text(Kind.CONTENT, self._header)
                    self._header = ""
            case _Place.HEADER:
                self._header += text
            case _Place.BETWEEN:
                self._out.text(Kind.CONTENT, text)
            case _Place.BODY:
                self._body(text)

    def _body(self, text: str) -> None:
        if self._calling:
            self._out.call(text, text)
        elif self._kind is Kind.MARKUP:
            self._out.markup(text)
        else:
            self._out.text(self._kind, text)

    def _marker(self, marker: str) -> None:
        if self._place in (_Place.START, _Place.HEADER):
            self._header += marker
            if marker == "<|message|>":
                self._begin_body()
            elif marker in self._ENDS:
                self._place = _Place.BETWEEN
                self._out.markup(self._header)
                self._header = ""
            else:
                self._place = _Place.HEADER
        elif marker in ("<|start|>", "<|channel|>"):
            self._end_body("")
            self._place, self._header = _Place.HEADER, marker
        elif marker in self._ENDS:
            self._end_body(marker)
        else:
            self._out.markup(marker)

    def _begin_body(self) -> None:
        header, self._header = self._header, ""
        self._place = _Place.BODY
        channel = self._CHANNEL.search(header)
        name = channel[1] if channel else "final"
        called = self._TO.search(header) is not None
        self._calling = called and self._calls
        if self._calling:
            self._out.call(header, header)
            return
        self._out.markup(header)
        self._out.new_message()
        self._kind = Kind.MARKUP
        if called or name in ("final", "commentary"):
            self._kind = Kind.CONTENT
        elif name == "analysis":
            self._kind = Kind.REASONING

    def _end_body(self, marker: str) -> None:
        self._place = _Place.BETWEEN
        if self._calling:
            # A reader of calls must see where one ends, whatever the model ended it with.
            self._out.call(marker or "<|end|>", marker)
        elif marker:
            self._out.markup(marker)
        self._calling = False


class _Guesser:
    """Reads the dialect off the beginning of the text, where nothing else tells it."""

    _OPENINGS = {opening: dialect for dialect in DIALECTS for opening in dialect.opens} | {"<|channel|>": HARMONY}
    _MARKERS = Markers(_OPENINGS)

    def __init__(self, calls: bool) -> None:
        self._calls = calls
        self._held = ""
        self._reader: Reader | None = None

    def feed(self, text: str) -> list[Segment]:
        return self._feed(text, final=False)

    def finish(self) -> list[Segment]:
        segments = self._feed("", final=True)
        return segments + (self._reader.finish() if self._reader else [])

    def _feed(self, text: str, *, final: bool) -> list[Segment]:
        if self._reader is not None:
            return self._reader.feed(text)
        self._held += text
        begun = self._held.lstrip(_SPACE)
        if not begun and not final:
            return []
        position, marker = self._MARKERS.find(begun, final=final)
        if position == 0 and marker is None and begun and not final:
            return []
        if position == 0 and marker is not None:
            self._reader = make_reader(self._OPENINGS[marker], calls=self._calls)
        else:
            self._reader = _BlockReader(THINK, inside=False, opening=False)
        held, self._held = self._held, ""
        return self._reader.feed(held)
