"""Formats whose calls stand between two markers and are read when they are complete."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.chat.tools.sink import Later, Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source


def read_block(
    src: Source,
    sink: Sink,
    *,
    open_mark: str,
    close_mark: str,
    parse: Callable[[str, Sink, bool], bool],
) -> Reading[None]:
    """Read up to `close_mark` and have the text before it parsed.

    A missing closing mark is forgiven: the next opening one, or the end of the text, ends the block too.

    parse: puts the calls it finds. It gets the block, the sink, and whether the block was cut off by the budget, and
    says whether the block looks like a call at all.

    Raises NotACall when the block is not closed and looks like no call.
    """
    body, found = yield from src.text_until(close_mark, open_mark)
    later = Later(sink.tools)
    looks = parse(body, later, found == "" and src.cut)
    if found != close_mark and not looks:
        raise NotACall
    src.commit()
    later.pour(sink)
    if found == close_mark:
        src.pos += len(found)
