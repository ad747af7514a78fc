"""LongCat-Flash: GLM's format under tags of its own, with JSON bodies beside it."""

from __future__ import annotations

from mlxcel.chat.tools import glm47
from mlxcel.chat.tools.json_calls import read_row
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import Reading, Source

TAGS = glm47.Tags("longcat_tool_call", "longcat_arg_key", "longcat_arg_value")
OPEN, CLOSE = TAGS.open, TAGS.close


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after the opening tag. Raises NotACall when the block is not closed and looks like no call."""
    yield from src.space()
    if (yield from src.peek()) in ("{", "["):
        src.commit()
        yield from read_row(src, sink, CLOSE, OPEN)
    else:
        yield from glm47.read(src, sink, TAGS)
