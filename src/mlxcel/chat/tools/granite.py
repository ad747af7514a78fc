"""Granite 3.3: Hermes blocks inside `<response>`."""

from __future__ import annotations

from mlxcel.chat.tools import hermes
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

OPEN = "<response>"
CLOSE = "</response>"


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after `<response>`. Raises NotACall when that is no block."""
    yield from src.space()
    if not (yield from src.takes(hermes.OPEN)):
        raise NotACall
    src.commit()
    while True:
        yield from hermes.read_block(src, sink)
        yield from src.space()
        yield from src.takes(hermes.CLOSE)
        yield from src.space()
        if not (yield from src.takes(hermes.OPEN)):
            break
    yield from src.takes(CLOSE)
