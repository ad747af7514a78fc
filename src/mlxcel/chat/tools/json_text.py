"""JSON as models write it: read while it arrives, kept in the model's own words.

Two slips that a client's parser would refuse are mended on the way, character by character: a raw control character
inside a string is escaped, and so is a backslash that begins no JSON escape.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from mlxcel.chat.tools.source import Reading, Source

Out = Callable[[str], object]

_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_SCALAR = re.compile(r"[-+.\w]*", re.ASCII)
_LITERAL = re.compile(r"(?:true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)\Z", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]*")
_SCALAR_LIMIT = 1024
_BRACKETS = re.compile(r"[\[\]{}]")
_STRINGS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_DEPTH = 200
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Malformed(Exception):
    """The text is no JSON here."""


class Unfinished(Malformed):
    """The text ended inside a JSON value."""


def ignore(text: str) -> None:
    """An `Out` for text that nobody needs."""


def value(src: Source, out: Out) -> Reading[None]:
    """Read one JSON value of any kind and depth. `out` gets its text, whitespace inside included.

    Raises Malformed.
    """
    closers: list[str] = []
    while True:
        char = yield from src.peek()
        if char == '"':
            yield from _string(src, out)
        elif char and char in "{[":
            _read(src, out)
            closers.append("}" if char == "{" else "]")
            yield from src.take(_SPACE, out)
            if (yield from src.peek()) != closers[-1]:
                if char == "{":
                    yield from _key(src, out)
                continue
        else:
            yield from _scalar(src, out)
        # A value is complete, or an empty container is about to be.
        while closers:
            yield from src.take(_SPACE, out)
            char = yield from src.peek()
            if char == closers[-1]:
                _read(src, out)
                closers.pop()
                continue
            if char != ",":
                fail(src)
            _read(src, out)
            yield from src.take(_SPACE, out)
            if closers[-1] == "}":
                yield from _key(src, out)
            break
        else:
            return


def string(src: Source, out: Out) -> Reading[None]:
    """Read a JSON string. `out` gets what it says, unescaped. Raises Malformed."""
    expect(src, (yield from src.peek()), '"')
    high = ""  # first half of a surrogate pair

    def say(text: str) -> None:
        nonlocal high
        if high and not _is_low(text):
            out("\ufffd")
            high = ""
        if _is_high(text):
            high = text
        elif _is_low(text):
            out((high + text).encode("utf-16", "surrogatepass").decode("utf-16") if high else "\ufffd")
            high = ""
        else:
            out(text)

    while True:
        yield from src.take(_PLAIN, say)
        char = yield from src.peek()
        if not char:
            raise Unfinished
        src.pos += 1
        if char == '"':
            if high:
                out("\ufffd")
            return
        say((yield from _escape(src))[1] if char == "\\" else char)


def decoded_string(src: Source, limit: int) -> Reading[str]:
    """Read a JSON string and give what it says; of a longer one than `limit` something longer than `limit`."""
    parts: list[str] = []
    length = 0

    def keep(text: str) -> None:
        nonlocal length
        if length <= limit:
            parts.append(text)
            length += len(text)

    yield from string(src, keep)
    return "".join(parts)


def separator(src: Source) -> Reading[str]:
    """Read whitespace and say what comes then, "" at the end of the text."""
    yield from src.take(_SPACE)
    return (yield from src.peek())


def expect(src: Source, char: str, wanted: str) -> None:
    """Read `char`, which was peeked. Raises Malformed when it is not the `wanted` one."""
    if char != wanted:
        fail(src)
    src.pos += 1


def fail(src: Source) -> NoReturn:
    """Raise Malformed, or Unfinished at the end of the text."""
    raise Unfinished if src.ended and src.pos == len(src.text) else Malformed


def quote(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string. Quoting pieces quotes the whole."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def compact(data: Any) -> str:
    """`data` as JSON without spaces, in valid Unicode."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def loads(text: str) -> Any:
    """Strict JSON to Python. Raises ValueError, also for NaN, infinities and extreme nesting."""
    depth = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > _DEPTH:
            raise ValueError("nested too deeply")
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite)


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value."""
    source = Source()
    source.feed(text)
    source.end(cut=False)
    try:
        for _ in value(source, ignore):
            pass
    except Malformed:
        return False
    return source.pos == len(text)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("out of range")
    return number


def _read(src: Source, out: Out) -> None:
    out(src.text[src.pos])
    src.pos += 1


def _key(src: Source, out: Out) -> Reading[None]:
    if (yield from src.peek()) != '"':
        fail(src)
    yield from _string(src, out)
    yield from src.take(_SPACE, out)
    if (yield from src.peek()) != ":":
        fail(src)
    _read(src, out)
    yield from src.take(_SPACE, out)


def _scalar(src: Source, out: Out) -> Reading[None]:
    word = yield from src.word(_SCALAR, _SCALAR_LIMIT)
    out(word)
    if not _LITERAL.match(word):
        fail(src)


def _string(src: Source, out: Out) -> Reading[None]:
    """Read a string as it stands, mending what JSON does not allow."""
    _read(src, out)
    while True:
        yield from src.take(_PLAIN, out)
        char = yield from src.peek()
        if not char:
            raise Unfinished
        src.pos += 1
        if char == '"':
            out(char)
            return
        out((yield from _escape(src))[0] if char == "\\" else quote(char))


def _escape(src: Source) -> Reading[tuple[str, str]]:
    """What follows a backslash: (as it is to be written, what it says)."""
    char = yield from src.peek()
    if not char:
        raise Unfinished
    if char in _ESCAPES:
        src.pos += 1
        return "\\" + char, _ESCAPES[char]
    if char == "'":  # escaped as in Python
        src.pos += 1
        return "'", "'"
    if char == "u":
        src.pos += 1
        digits = yield from src.word(_HEX, 4)
        if len(digits) == 4:
            return f"\\u{digits}", chr(int(digits, 16))
        return f"\\\\u{digits}", f"\\u{digits}"
    return "\\\\", "\\"


def _is_high(text: str) -> bool:
    return "\ud800" <= text < "\udc00"


def _is_low(text: str) -> bool:
    return "\udc00" <= text < "\ue000"
