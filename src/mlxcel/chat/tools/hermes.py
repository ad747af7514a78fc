"""Hermes, Qwen, DeepSeek: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, one block a call.

GLM's blocks and Qwen3-Coder's have the same tags; the first character of the body tells them apart.
"""

from __future__ import annotations

from mlxcel.chat.tools import glm47, qwen3_coder
from mlxcel.chat.tools.json_calls import read_row
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import Reading, Source

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


def read_block(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after `<tool_call>`, whichever format it is in. The closing tag may be left."""
    yield from src.space()
    char = yield from src.peek()
    if char in ("{", "["):
        src.commit()
        yield from read_row(src, sink, CLOSE, OPEN)
    elif (yield from src.takes(qwen3_coder.OPEN)):
        src.commit()
        yield from qwen3_coder.read_wrapped(src, sink)
    else:
        yield from glm47.read(src, sink)
