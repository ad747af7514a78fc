"""Kimi K2: a section of calls, each `functions.NAME:INDEX`, a marker, and the arguments.

Arguments that are no JSON are read as a Python dict, and else kept as they stand.
"""

from __future__ import annotations

import re

from mlxcel.chat.tools.json_text import is_json
from mlxcel.chat.tools.python_text import to_json
from mlxcel.chat.tools.sink import Sink, whole
from mlxcel.chat.tools.source import NotACall, Reading, Source

OPEN = "<|tool_calls_section_begin|>"
CLOSE = "<|tool_calls_section_end|>"
CALL = "<|tool_call_begin|>"
CALL_END = "<|tool_call_end|>"
ARGUMENTS = "<|tool_call_argument_begin|>"
_HEADER = re.compile(r"\s*(?:functions\.)?([^\s:]+):\d+\s*\Z")


def read_section(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after the section's marker. Raises NotACall when no call follows."""
    yield from src.space()
    if not (yield from src.takes(CALL)):
        body, found = yield from src.text_until(CALL, ARGUMENTS, CLOSE, OPEN)
        if found in ("", OPEN) and not (src.cut and body.startswith(("functions.", "<"))):
            raise NotACall
        if found == ARGUMENTS:  # the section is one call, without a wrapper
            src.commit()
            yield from _read_arguments(src, sink, body)
        elif found == CALL:
            src.pos += len(found)
    src.commit()
    while True:
        yield from read_call(src, sink)
        if (yield from src.until(CALL, CLOSE)) != CALL:
            break
        src.pos += len(CALL)
    yield from src.takes(CLOSE)


def read_call(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after the marker of one call. Outside of a section, raises NotACall when it is none."""
    header, found = yield from src.text_until(ARGUMENTS, CALL_END, CALL, CLOSE)
    if found == ARGUMENTS:
        src.commit()
        yield from _read_arguments(src, sink, header)
    elif not src.committed:
        raise NotACall


def _read_arguments(src: Source, sink: Sink, header: str) -> Reading[None]:
    src.pos += len(ARGUMENTS)
    body, found = yield from src.text_until(CALL_END, CALL, CLOSE)
    name = _HEADER.match(header)
    body = body.strip()
    valid = is_json(body)
    if name is not None and (found or valid or not src.cut):
        whole(sink, name[1], body if valid else _mended(body))


def _mended(body: str) -> str:
    return (to_json(body) or body) if body else "{}"
