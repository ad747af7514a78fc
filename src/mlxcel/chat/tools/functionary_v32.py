"""Functionary v3.2: `>>>NAME` on a line of its own, then the arguments as JSON. `>>>all` introduces plain text."""

from __future__ import annotations

import re

from mlxcel.chat.tools.json_text import Malformed, value
from mlxcel.chat.tools.sink import Later, Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

MARK = ">>>"
OPEN = "\n>>>"
_TEXT = "all"
_NAME = re.compile(r"[\w.\-]*")
_BLANK = re.compile(r"[ \t\r]*")


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read from the name on. Raises NotACall when no such line follows, or no JSON below it."""
    name = yield from src.word(_NAME)
    yield from src.take(_BLANK)
    if not name or (yield from src.peek()) not in ("\n", ""):
        raise NotACall
    if name == _TEXT:
        src.commit()
        return
    yield from src.space()
    if (yield from src.peek()) != "{" and not (src.cut and src.ends_within("{") and sink.tools.accept(name)):
        raise NotACall
    src.commit()
    yield from read_json(src, sink, name, OPEN)


def read_primed(src: Source, sink: Sink) -> Reading[None]:
    """Read the beginning of an answer whose prompt ends with `>>>`."""
    name = yield from src.word(_NAME)
    if name != _TEXT and sink.tools.accept(name) is None:
        raise NotACall
    src.pos -= len(name)
    yield from read(src, sink)


def read_json(src: Source, sink: Sink, name: str, *resume: str) -> Reading[None]:
    """Read one JSON object: the arguments of a call to `name`, put when they are complete.

    resume: where to go on after an object that is malformed.
    """
    later = Later(sink.tools)
    later.start(name)
    try:
        yield from value(src, later.arguments)
    except Malformed:
        yield from src.skip(*resume)
        return
    later.end()
    later.pour(sink)
