"""Harmony (GPT-OSS): messages with a channel, `<|channel|>commentary to=functions.NAME<|message|>{...}<|call|>`.

Harmony owns the whole text: what is no call and no content of a channel for the user is markup.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from mlxcel.chat.tools.json_text import is_json
from mlxcel.chat.tools.sink import Sink, whole
from mlxcel.chat.tools.source import NotACall, Reading, Source

CHANNEL = "<|channel|>"
MESSAGE = "<|message|>"
START = "<|start|>"
ENDS = ("<|call|>", "<|end|>", "<|return|>")
MARKS = (CHANNEL, MESSAGE, START, *ENDS)
_BODY_ENDS = (*ENDS, START, CHANNEL)
RECIPIENT = "to="
_TO = re.compile(r"(?:^|\s)to=([^\s<]+)")
_HEADER = re.compile(r"[^\n<]*")
_MAX_HEADER = 256
_CONTENT_CHANNELS = ("final", "commentary", "")


def read(src: Source, sink: Sink, on_content: Callable[[], None], header: str = "") -> Reading[None]:
    """Read what stands after `<|channel|>`: a header, and the body when it is not for the user.

    on_content: called when a body for the user begins; it is not read here.
    header: what stood before, after `<|start|>`.

    Raises NotACall when no header follows.
    """
    channel = yield from _header(src)
    if not (yield from src.takes(MESSAGE)):
        if not src.cut or (yield from src.peek()):
            raise NotACall
        return  # the budget ended inside the header
    src.commit()
    recipient = _TO.search(channel) or _TO.search(header)
    if recipient is not None:
        yield from _call(src, sink, recipient[1])
    elif next(iter(channel.split()), "").partition("<")[0] in _CONTENT_CHANNELS:
        on_content()
    else:
        yield from src.skip(*_BODY_ENDS)


def read_start(src: Source, sink: Sink, on_content: Callable[[], None]) -> Reading[None]:
    """Read what stands after `<|start|>`: a role, then a channel or a body."""
    header = yield from _header(src)
    if (yield from src.takes(CHANNEL)):
        yield from read(src, sink, on_content, header)
    elif (yield from src.sees(MESSAGE)):
        yield from _unchannelled(src, sink, on_content, header)
    elif not src.cut or (yield from src.peek()):
        raise NotACall


def _unchannelled(src: Source, sink: Sink, on_content: Callable[[], None], header: str) -> Reading[None]:
    yield from src.takes(MESSAGE)
    src.commit()
    recipient = _TO.search(header)
    if recipient is not None:
        yield from _call(src, sink, recipient[1])
    else:
        on_content()


def _header(src: Source) -> Reading[str]:
    """Read up to a mark on the same line, within reason."""
    parts: list[str] = []
    length = 0
    while length < _MAX_HEADER:
        part = yield from src.word(_HEADER, _MAX_HEADER - length)
        parts.append(part)
        length += len(part)
        if (yield from src.peek()) != "<" or (yield from src.sees(CHANNEL, MESSAGE)):
            break
        parts.append("<")
        length += 1
        src.pos += 1
    return "".join(parts)


def _call(src: Source, sink: Sink, name: str) -> Reading[None]:
    body, found = yield from src.text_until(*_BODY_ENDS)
    body = body.strip()
    if found or not src.cut or is_json(body):
        whole(sink, name.removeprefix("functions."), body or "{}")
