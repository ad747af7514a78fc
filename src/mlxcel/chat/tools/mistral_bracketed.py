"""Newer Mistral models: `[TOOL_CALLS]NAME[ARGS]{...}`, the pair repeated for every call.

Arguments that are no JSON are kept as they stand, up to the next marker.
"""

from __future__ import annotations

import re

from mlxcel.chat.tools.json_text import Malformed, separator, string, value
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

_OPEN = "[TOOL_CALLS]"
ARGUMENTS = "[ARGS]"
CALL_ID = "[CALL_ID]"
_NAME = re.compile(r"[\w.\-]*")


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read from the name on. Raises NotACall when no name with arguments follows."""
    name = yield from src.word(_NAME)
    yield from src.space()
    if name and (yield from src.takes(CALL_ID)):
        yield from src.word(_NAME)
        yield from src.space()
    if not name or not (yield from src.takes(ARGUMENTS)):
        raise NotACall
    src.commit()
    sink.start(name)
    out = Trimmed(sink)
    char = yield from separator(src)
    try:
        if char == "{":
            yield from value(src, out.add)
            sink.end()
            return
        if char == '"':
            yield from string(src, sink.arguments)
            sink.end()
            return
    except Malformed:
        pass
    yield from src.until(_OPEN, out=out.add)
    if src.ended and src.cut and src.pos == len(src.text):
        sink.fail()
        return
    if out.empty:
        sink.arguments("{}")
    sink.end()


class Trimmed:
    """Passes arguments on without the whitespace at their end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._space: list[str] = []
        self.empty = True

    def add(self, text: str) -> None:
        """More text."""
        body = text.rstrip()
        if body:
            for space in self._space:
                self._sink.arguments(space)
            self._space.clear()
            self._sink.arguments(body)
            self.empty = False
        if len(body) < len(text):
            self._space.append(text[len(body) :])
