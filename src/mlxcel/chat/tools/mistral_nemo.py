"""Mistral Nemo: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`."""

from __future__ import annotations

from mlxcel.chat.tools import mistral_bracketed
from mlxcel.chat.tools.json_calls import read_row
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import Reading, Source

OPEN = "[TOOL_CALLS]"


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after `[TOOL_CALLS]`: a list, or the newer form with a bare name."""
    yield from src.space()
    if (yield from src.peek()) in ("[", "{") and not (yield from src.sees(OPEN)):
        src.commit()
        yield from read_row(src, sink, OPEN)
    else:
        yield from mistral_bracketed.read(src, sink)
