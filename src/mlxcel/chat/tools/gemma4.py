"""Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,key:2}<tool_call|>`.

Keys are bare, strings stand between marks of their own, everything else is as in JSON.
"""

from __future__ import annotations

import re

from mlxcel.chat.tools.block import read_block
from mlxcel.chat.tools.json_text import is_json, quote
from mlxcel.chat.tools.sink import Sink, whole
from mlxcel.chat.tools.source import Reading, Source

OPEN = "<|tool_call>"
CLOSE = "<tool_call|>"
QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*call:\s*([^\s{}]+)\s*(?=\{)")
_BEGINNING = "call:"
_TOKEN = re.compile(r'<\|"\|>(?P<string>.*?)<\|"\|>|(?P<mark>[{}\[\],:])|(?P<scalar>[^{}\[\],:<]+)', re.DOTALL)


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after the opening mark. Raises NotACall when it is not closed and looks like no call."""
    yield from read_block(src, sink, open_mark=OPEN, close_mark=CLOSE, parse=_parse)


def _parse(body: str, sink: Sink, cut: bool) -> bool:
    head = _HEAD.match(body)
    if head is not None:
        arguments = _to_json(body[head.end() :].rstrip())
        if arguments is not None:
            whole(sink, head[1], arguments)
    return body.lstrip().startswith(_BEGINNING) or (cut and _BEGINNING.startswith(body.strip()))


def _to_json(text: str) -> str | None:
    """The JSON object that `text` means; None when it is none."""
    out: list[str] = []
    position = 0
    key = False  # a key comes next
    objects: list[bool] = []  # for each open bracket: whether it is an object
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            return None
        position = found.end()
        mark = found["mark"]
        if mark is None:
            out.append(_piece(found, key))
            continue
        out.append(mark)
        if mark in "{[":
            objects.append(mark == "{")
        elif mark in "}]":
            if not objects:
                return None
            objects.pop()
        key = mark in "{," and bool(objects) and objects[-1]
    json_text = "".join(out)
    return json_text if is_json(json_text) else None


def _piece(found: re.Match[str], key: bool) -> str:
    if found["string"] is not None:
        return f'"{quote(found["string"])}"'
    word = found["scalar"].strip()
    return f'"{quote(word)}"' if key and word and not word.startswith('"') else word
