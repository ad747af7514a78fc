"""GLM-4.7: `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`.

Other bodies that GLM models write, when there are no keys: JSON (read where Hermes' is), `NAME {...}`, and
`NAME key=value key="two words"`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

from mlxcel.chat.tools.arguments import Arguments
from mlxcel.chat.tools.block import read_block
from mlxcel.chat.tools.coerce import Rules
from mlxcel.chat.tools.json_text import is_json
from mlxcel.chat.tools.sink import Sink, whole
from mlxcel.chat.tools.source import Reading, Source

_NAME = re.compile(r"[\w.\-]+\Z")
_NAME_AND_JSON = re.compile(r"([\w.\-]+)\s*(\{.*\})\Z", re.DOTALL)
_BEGUN = re.compile(r"([\w.\-]+)\s*(?:[<{].*)?\Z", re.DOTALL)
_PAIR = re.compile(r"""\s*([\w.\-]+)=("[^"]*"|'[^']*'|[^\s"']\S*)(?=\s|\Z)""")


@dataclass(frozen=True, slots=True)
class Tags:
    """How one format writes a call."""

    block: str
    key: str
    value: str

    @property
    def open(self) -> str:
        return f"<{self.block}>"

    @property
    def close(self) -> str:
        return f"</{self.block}>"

    @property
    def all(self) -> tuple[str, ...]:
        """Every tag, opening and closing."""
        return tuple(f"<{slash}{name}>" for name in (self.block, self.key, self.value) for slash in ("", "/"))


TAGS = Tags("tool_call", "arg_key", "arg_value")


def read(src: Source, sink: Sink, tags: Tags = TAGS) -> Reading[None]:
    """Read what stands after the opening tag. Raises NotACall when the block is not closed and looks like no call."""
    yield from read_block(src, sink, open_mark=tags.open, close_mark=tags.close, parse=partial(_parse, tags=tags))


def _parse(body: str, sink: Sink, cut: bool, tags: Tags) -> bool:
    body = body.strip()
    name, key, _ = body.partition(f"<{tags.key}>")
    if key:
        if not cut and name.strip():
            _put(sink, name.strip(), _pairs(body, tags))
        return True
    with_json = _NAME_AND_JSON.match(body)
    if with_json:
        if is_json(with_json[2]):
            whole(sink, with_json[1], with_json[2])
        return True
    if _NAME.match(body):
        if not cut:
            whole(sink, body, "{}")
        return sink.tools.accept(body) is not None
    name, _, rest = body.partition(" ")
    pairs = _spelled_pairs(rest) if _NAME.match(name) else []
    if pairs and not cut:
        _put(sink, name, pairs)
    begun = _BEGUN.match(body)
    return bool(pairs) or (cut and begun is not None and sink.tools.accept(begun[1]) is not None)


def _put(sink: Sink, name: str, pairs: list[tuple[str, str]]) -> None:
    sink.start(name)
    arguments = Arguments(sink, name, Rules.LOOSE)
    for key, raw in pairs:
        arguments.add(key, raw)
    arguments.end()


def _pairs(body: str, tags: Tags) -> list[tuple[str, str]]:
    """Keys and values in tags. A value ends at its closing tag, or else where the next key begins."""
    pairs: list[tuple[str, str]] = []
    for part in body.split(f"<{tags.key}>")[1:]:
        key, _, rest = part.partition(f"</{tags.key}>")
        _, opened, value = rest.partition(f"<{tags.value}>")
        if opened:
            pairs.append((key.strip(), value.partition(f"</{tags.value}>")[0]))
    return pairs


def _spelled_pairs(text: str) -> list[tuple[str, str]]:
    """`key=value` pairs; empty when `text` holds anything else."""
    pairs: list[tuple[str, str]] = []
    position = 0
    text = text.rstrip()
    while position < len(text):
        found = _PAIR.match(text, position)
        if found is None:
            return []
        pairs.append((found[1], found[2][1:-1] if found[2][0] in "\"'" else found[2]))
        position = found.end()
    return pairs
