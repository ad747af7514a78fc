"""Command R: the whole answer is lines of `Action: NAME` and `Action Input: {...}`, one pair a call."""

from __future__ import annotations

import re

from mlxcel.chat.tools.json_text import Malformed, Unfinished, value
from mlxcel.chat.tools.sink import Later, Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

OPEN = "Action:"
_INPUT = "Action Input:"
_BLANK = re.compile(r"[ \t\r]*")
_LINE = re.compile(r"[^\n]*")


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read the whole answer. Raises NotACall when it holds anything but such lines."""
    later = Later(sink.tools)
    try:
        while True:
            yield from src.space()
            if not (yield from src.peek()):
                break
            yield from _pair(src, later)
    except Unfinished:
        src.pos = len(src.text)
    src.commit()
    later.pour(sink)


def _pair(src: Source, sink: Sink) -> Reading[None]:
    if not (yield from src.takes(OPEN)):
        raise NotACall
    name = (yield from src.word(_LINE)).strip()
    yield from src.space()
    if not name or not (yield from src.takes(_INPUT)):
        if src.ends_within(_INPUT) and sink.tools.accept(name):
            raise Unfinished  # the rest of a call that was cut off
        raise NotACall
    yield from src.take(_BLANK)
    sink.start(name)
    try:
        yield from value(src, sink.arguments)
    except Unfinished:
        sink.fail()
        raise
    except Malformed:
        sink.fail()
        yield from src.take(_LINE)
        return
    sink.end()
    yield from src.take(_BLANK)
    if (yield from src.peek()) not in ("\n", ""):
        raise NotACall
