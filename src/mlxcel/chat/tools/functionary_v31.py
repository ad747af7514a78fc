"""Functionary v3.1: `<function=NAME>{...}</function>`. A body that is no JSON is Qwen3-Coder's."""

from __future__ import annotations

from mlxcel.chat.tools.functionary_v32 import read_json
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import Reading, Source

OPEN = "<function="
CLOSE = "</function>"


def read_body(src: Source, sink: Sink, name: str) -> Reading[None]:
    """Read the JSON body of a call and its closing tag, which may be missing."""
    yield from read_json(src, sink, name, CLOSE, OPEN)
    yield from src.space()
    yield from src.takes(CLOSE)
