"""Llama 3: `<|python_tag|>{"name": ..., "parameters": {...}}`. Without the tag, see `generic_json`."""

from __future__ import annotations

from mlxcel.chat.tools.json_calls import read_row
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

OPEN = "<|python_tag|>"
BETWEEN = ";"
"""What Llama puts between parallel calls."""


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after the tag. Raises NotACall when it is no JSON: the tag also opens code."""
    yield from src.space()
    if (yield from src.peek()) not in ("{", "["):
        raise NotACall
    src.commit()
    yield from read_row(src, sink, OPEN, between=BETWEEN)
