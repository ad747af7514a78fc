"""Function-calling Gemma: `<start_function_call>call:NAME{key:<escape>text<escape>,key:2}<end_function_call>`.

A value that is no text between marks is JSON if it parses, otherwise text as it stands.
"""

from __future__ import annotations

import re

from mlxcel.chat.tools.block import read_block
from mlxcel.chat.tools.json_text import compact, is_json
from mlxcel.chat.tools.sink import Sink, whole
from mlxcel.chat.tools.source import Reading, Source

OPEN = "<start_function_call>"
CLOSE = "<end_function_call>"
ESCAPE = "<escape>"
_HEAD = re.compile(r"\s*call:\s*([^\s{}]+)\s*\{")
_BEGINNING = "call:"
_KEY = re.compile(r"\s*,?\s*([^\s:,{}]+)\s*:\s*")
_PART = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]|,|[^"\[\]{},]+', re.DOTALL)


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after the opening mark. Raises NotACall when it is not closed and looks like no call."""
    yield from read_block(src, sink, open_mark=OPEN, close_mark=CLOSE, parse=_parse)


def _parse(body: str, sink: Sink, cut: bool) -> bool:
    head = _HEAD.match(body)
    end = body.rfind("}")
    if head is not None and end >= head.end() and not cut:
        pairs = _pairs(body[head.end() : end])
        if pairs is not None:
            whole(sink, head[1], "{" + ",".join(f"{compact(key)}:{value}" for key, value in pairs.items()) + "}")
    return body.lstrip().startswith(_BEGINNING) or (cut and _BEGINNING.startswith(body.strip()))


def _pairs(text: str) -> dict[str, str] | None:
    """Keys and values, these in JSON; None when `text` is no such list."""
    pairs: dict[str, str] = {}
    position = 0
    text = text.rstrip()
    while position < len(text):
        key = _KEY.match(text, position)
        if key is None:
            return None
        position = key.end()
        if text.startswith(ESCAPE, position):
            start = position + len(ESCAPE)
            end = text.find(ESCAPE, start)
            if end < 0:
                return None
            value = compact(text[start:end])
            position = end + len(ESCAPE)
        else:
            end = _value_end(text, position)
            raw = text[position:end].strip()
            value = raw if is_json(raw) else compact(raw)
            position = end
        pairs.setdefault(key[1], value)
    return pairs


def _value_end(text: str, position: int) -> int:
    """Where a value without marks ends: at a comma outside of strings and brackets, or with the text."""
    depth = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            break
        part = found[0]
        if part == "," and depth <= 0:
            break
        depth += (part in "[{") - (part in "]}")
        position = found.end()
    return position
