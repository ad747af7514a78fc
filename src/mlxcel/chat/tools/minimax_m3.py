"""MiniMax M3: elements in elements, with a prefix before every tag.

`<invoke name="NAME">` is a call, the elements inside are its parameters: an element of its own for every key, `item`
for every entry of a list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from mlxcel.chat.tools.coerce import Rules, coerce
from mlxcel.chat.tools.json_text import compact
from mlxcel.chat.tools.sink import Later, Sink, whole
from mlxcel.chat.tools.source import NotACall, Reading, Source

PREFIX = "]<]minimax[>["
_BLOCK = "<tool_call>"
_CALL = "<invoke"
_TAG = re.compile(r"""<(/?)([^\s<>/]+)(?:\s+name=["']?([^"'<>]*)["']?)?\s*/?>""")
_TAG_CHARACTER = re.compile(r"[^<>\n]*")
_MAX_DEPTH = 64
_MAX_CHILDREN = 1024
_TEXT = "$text"
_ITEM = "item"


@dataclass(slots=True)
class _Element:
    name: str
    text: list[str] = field(default_factory=list[str])
    children: list[_Element] = field(default_factory=list["_Element"])


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after a prefix: a block of calls, one call, or a tag that is left over."""
    opening = yield from src.takes(_BLOCK, _CALL)
    if not opening:
        if (yield from src.takes("<")):
            yield from src.word(_TAG_CHARACTER)
            yield from src.takes(">")
        src.commit()
        return
    close = PREFIX + ("</tool_call>" if opening == _BLOCK else "</invoke>")
    body, found = yield from src.text_until(close, PREFIX + _BLOCK)
    later = Later(sink.tools)
    looks = _parse(opening + body + (found if found == close else ""), later, cut=found == "" and src.cut)
    if found != close and not looks:
        raise NotACall
    src.commit()
    if found == close:
        src.pos += len(close)
    later.pour(sink)


def _parse(body: str, sink: Sink, *, cut: bool) -> bool:
    """Put the calls; whether there is anything like one."""
    reader = _Elements(sink)
    first, *parts = body.split(PREFIX)
    for part in (first, *parts):
        tag = _TAG.match(part)
        if tag is None:
            reader.text(part)
        else:
            reader.tag(tag)
            reader.text(part[tag.end() :])
    if not cut:
        reader.end_call()
    return _CALL in body or (cut and not body.removeprefix(_BLOCK).strip())


class _Elements:
    """Builds the elements of one call after the other, and puts each call when it is complete."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._open: list[_Element] = []  # the call, then the elements inside each other
        self._too_deep = 0

    def tag(self, tag: re.Match[str]) -> None:
        """An opening or a closing tag."""
        closing, name, call = tag.groups()
        if name == "invoke" and not closing:
            self.end_call()
            self._open = [_Element(call or "")]
        elif name == "invoke":
            self.end_call()
        elif self._too_deep or (not closing and len(self._open) > _MAX_DEPTH):
            self._too_deep += -1 if closing else 1
            self.text(tag[0])
        elif not closing:
            self._begin(name)
        else:
            self._finish(name)

    def text(self, text: str) -> None:
        """Text inside the innermost element."""
        if self._open:
            self._open[-1].text.append(text)

    def end_call(self) -> None:
        """The call is complete, if one is open."""
        if self._open and self._open[0].name:
            call = self._open[0]
            schema = {"properties": self._sink.tools.properties(call.name)}
            whole(self._sink, call.name, compact(_object(call, schema)))
        self._open = []
        self._too_deep = 0

    def _begin(self, name: str) -> None:
        if self._open:
            element = _Element(name)
            if len(self._open[-1].children) < _MAX_CHILDREN:
                self._open[-1].children.append(element)
            self._open.append(element)

    def _finish(self, name: str) -> None:
        """Close the innermost open element of that name, and what was left open inside."""
        for depth in range(len(self._open) - 1, 0, -1):
            if self._open[depth].name == name:
                del self._open[depth:]
                return


def _value(element: _Element, schema: Any) -> Any:
    text = "".join(element.text).strip()
    if not element.children:
        return coerce(text, schema, Rules.STRICT)
    if not text and all(child.name == _ITEM for child in element.children):
        items = _field(schema, "items")
        return [_value(child, items) for child in element.children]
    value = _object(element, schema)
    return {**value, _TEXT: text} if text else value


def _object(element: _Element, schema: Any) -> dict[str, Any]:
    """The children by name; those of one name make a list."""
    properties = _field(schema, "properties")
    groups: dict[str, list[_Element]] = {}
    for child in element.children:
        groups.setdefault(child.name, []).append(child)
    values: dict[str, Any] = {}
    for name, children in groups.items():
        declared = _field(properties, name)
        if len(children) == 1:
            values[name] = _value(children[0], declared)
        else:
            each = _field(declared, "items") or declared
            values[name] = [_value(child, each) for child in children]
    return values


def _field(schema: Any, name: str) -> Any:
    return cast(Mapping[str, Any], schema).get(name) if isinstance(schema, Mapping) else None
