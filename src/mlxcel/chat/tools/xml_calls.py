"""The common part of Qwen3-Coder's and MiniMax M2's calls: a name in a tag, then parameters in tags.

Models forget closing tags; a value then ends where the next thing begins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlxcel.chat.tools.arguments import Arguments
from mlxcel.chat.tools.coerce import Rules
from mlxcel.chat.tools.json_text import ignore
from mlxcel.chat.tools.sink import Later, Sink
from mlxcel.chat.tools.source import Reading, Source

_NAME = re.compile(r"[^<>\n]*")


@dataclass(frozen=True, slots=True)
class Tags:
    """How one format writes a call."""

    parameter: str
    """Begins a parameter; its key and `>` follow."""
    value_end: str
    call_end: str
    outer_end: str
    """Ends what stands around the call: a call ends there too. It is not read."""


def read_name(src: Source) -> Reading[str | None]:
    """The name or key in a tag that has begun, and the `>` after it. None when there is none."""
    name = (yield from src.word(_NAME)).strip()
    if (yield from src.peek()) != ">":
        return None
    src.pos += 1
    return name.strip("\"'") or None


def read_parameters(src: Source, sink: Sink, name: str, tags: Tags, *, streams: bool) -> Reading[None]:
    """Read the parameters of a call to `name` up to its closing tag, and put it: while it comes in, or at its end."""
    later = None if streams else Later(sink.tools)
    target = sink if later is None else later
    target.start(name)
    arguments = Arguments(target, name, Rules.LAX)
    complete = yield from _read(src, arguments, tags)
    if complete:
        arguments.end()
    else:
        target.fail()
    if later is not None:
        later.pour(sink)


def _read(src: Source, arguments: Arguments, tags: Tags) -> Reading[bool]:
    """Whether the call is complete. A missing closing tag is forgiven, except where the budget cut the text."""
    while True:
        found = yield from src.until(tags.parameter, tags.call_end, tags.outer_end)
        if found == tags.call_end:
            src.pos += len(found)
            return True
        if found != tags.parameter:
            return not (found == "" and src.cut)
        src.pos += len(found)
        key = yield from read_name(src)
        if key is not None and not (yield from _value(src, arguments, key, tags)):
            return False


def _value(src: Source, arguments: Arguments, key: str, tags: Tags) -> Reading[bool]:
    ends = (tags.value_end, tags.parameter, tags.call_end)
    if not arguments.accepts(key):
        found = yield from src.until(*ends, out=ignore)
    elif arguments.is_text(key):
        arguments.begin_text(key)
        found = yield from src.until(*ends, out=arguments.more_text)
        if found or not src.cut:
            arguments.end_text()
    else:
        raw, found = yield from src.text_until(*ends)
        if found or not src.cut:
            arguments.add(key, raw)
    if found == tags.value_end:
        src.pos += len(found)
    return bool(found) or not src.cut
