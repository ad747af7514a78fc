"""Pythonic calls: `[get_weather(city="Oslo", days=2)]`, with marks around the list or without.

Without marks only a list whose first name is a declared function counts.
"""

from __future__ import annotations

import re
from typing import Any

from mlxcel.chat.tools.json_calls import read_row
from mlxcel.chat.tools.json_text import compact, loads
from mlxcel.chat.tools.python_text import to_json
from mlxcel.chat.tools.sink import Later, Sink, whole
from mlxcel.chat.tools.source import NotACall, Reading, Source

OPEN = "<|tool_call_start|>"
CLOSE = "<|tool_call_end|>"
BARE_OPEN = "["
PYTHON_MARKS = ("<|python_start|>", "<|python_end|>")
"""Llama 4 puts these around the list. They need not be read: a bare list is found anyway."""
_NAME = re.compile(r"[\w.]*")
_KEY = re.compile(r"\s*([^\W\d]\w*)\s*=")
_PLAIN = re.compile(r"[^'\"()\[\]{}]*")
_STRING_PART = {quote: re.compile(rf"[^{quote}\\]*") for quote in "'\""}
_TOKEN = re.compile(
    r"""(?P<string>'(?:[^'\\]|\\.)*+(?:'|\\?\Z)|"(?:[^"\\]|\\.)*+(?:"|\\?\Z))|[\[({\])},]|[^'"\[\](){},]+""", re.DOTALL
)
_INTEGER = re.compile(r"[+-]?\d{1,18}\Z", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?\Z", re.ASCII)
_ESCAPED = re.compile(r"\\(['\"\\])")
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_MAX_DEPTH = 32


def read(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after the opening mark. Raises NotACall when no list of calls follows, and no closing mark."""
    try:
        yield from _marked(src, sink)
    except NotACall:
        if (yield from src.until(CLOSE, OPEN)) != CLOSE and not src.committed:
            raise


def _marked(src: Source, sink: Sink) -> Reading[None]:
    yield from src.space()
    if not (yield from src.takes("[")):
        raise NotACall
    yield from src.space()
    if (yield from src.peek()) == "{":  # JSON calls between the same marks
        src.commit()
        yield from read_row(src, sink, CLOSE, between=",]")
        return
    yield from _list(src, sink)


def read_bare(src: Source, sink: Sink) -> Reading[None]:
    """Read what stands after a `[`. Raises NotACall when it is no list of calls, the first to a declared function."""
    later = Later(sink.tools)
    yield from src.space()
    try:
        yield from _list(src, later, bare=True)
    except _Ended:
        if not src.cut:
            raise
    src.commit()
    later.pour(sink)


class _Ended(NotACall):
    """The text ended inside a call."""


def _list(src: Source, sink: Sink, *, bare: bool = False) -> Reading[None]:
    """Read calls up to the bracket that closes their list."""
    while True:
        name = yield from src.word(_NAME)
        if not name or (bare and sink.tools.accept(name) is None):
            raise NotACall
        yield from src.space()
        if not (yield from src.takes("(")):
            raise NotACall
        if not bare:
            src.commit()
        arguments = _arguments((yield from _inside(src)))
        if arguments is not None:
            whole(sink, name, arguments)
        yield from src.space()
        found = yield from src.takes(",", "]")
        if found == "]":
            return
        if not found:
            raise NotACall if (yield from src.peek()) else _Ended
        yield from src.space()
        if (yield from src.takes("]")):  # a comma after the last call, as Python allows
            return


def _inside(src: Source) -> Reading[str]:
    """Read up to the parenthesis that closes the one just read, which is read too. Raises _Ended."""
    parts: list[str] = []
    depth = 1
    while True:
        yield from src.take(_PLAIN, parts.append)
        char = yield from src.peek()
        if not char:
            raise _Ended
        src.pos += 1
        depth += (char in "([{") - (char in ")]}")
        if depth == 0:
            return "".join(parts)
        parts.append(char)
        while char in _STRING_PART:
            yield from src.take(_STRING_PART[char], parts.append)
            end = yield from src.peek()
            if not end:
                raise _Ended
            src.pos += 1
            parts.append(end)
            if end == char:
                break
            parts.append((yield from src.peek()))  # what a backslash escapes
            src.pos += len(parts[-1])


def _arguments(text: str) -> str | None:
    """The JSON object of `key=value, ...`; None when `text` is something else."""
    values: dict[str, Any] = {}
    for part in _split(text):
        key = _KEY.match(part)
        if key is None:
            return None
        values.setdefault(key[1], _value(part[key.end() :].strip(), 0))
    return compact(values)


def _split(text: str) -> list[str]:
    """The parts between commas that stand outside of strings and brackets."""
    parts: list[str] = []
    start = position = depth = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            break
        token = found[0]
        if token == "," and depth == 0:
            parts.append(text[start:position])
            start = found.end()
        elif not found["string"]:
            depth += (token in "[({") - (token in "])}")
        position = found.end()
    parts.append(text[start:])
    if not parts[-1].strip():
        parts.pop()
    return parts


def _value(text: str, depth: int) -> Any:
    quoted = _TOKEN.match(text)
    if quoted is not None and quoted["string"] and quoted.end() == len(text):
        return _ESCAPED.sub(r"\1", text[1:-1])
    if _INTEGER.match(text):
        return int(text)
    if _FLOAT.match(text):
        number = float(text)
        return number if number not in (float("inf"), float("-inf")) else text
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("[") and text.endswith("]") and depth < _MAX_DEPTH:
        return [_value(part.strip(), depth + 1) for part in _split(text[1:-1])]
    if text.startswith("{"):
        candidate = to_json(text)
        try:
            return text if candidate is None else loads(candidate)
        except ValueError:
            return text
    return text
