"""Calls written as JSON objects: `{"name": ..., "arguments": ...}`, alone, in a row or in a list.

An object's `arguments` go out as they arrive, in the model's own text; a string's content goes out unescaped. When
the name comes last, everything waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.chat.tools.json_text import (
    Malformed,
    Unfinished,
    decoded_string,
    expect,
    fail,
    ignore,
    separator,
    string,
    value,
)
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source

ARGUMENTS = ("arguments", "parameters")
_MAX_NAME = 256
_MAX_KEY = 64
_WRAPPERS = ("function", "tool")
"""Keys whose object holds the call: OpenAI's form, and one of GLM's."""
_OTHER_KEYS = frozenset(("type", "id"))
"""Keys that may stand beside a call's own without making it anything else."""


@dataclass(slots=True)
class _Call:
    """What is known of the object being read."""

    name: str | None = None
    arguments: list[str] | None = None
    """Arguments that wait for the name."""
    started: bool = False
    complete: bool = False
    """The arguments were read to their end."""


class JsonCalls:
    """Reads calls from one source into one sink.

    strict: an object with any key that a call has not is no call, and raises NotACall. For texts that nothing but
    their shape tells from an ordinary answer.
    """

    def __init__(self, src: Source, sink: Sink, *, strict: bool = False) -> None:
        self._src = src
        self._sink = sink
        self.strict = strict
        self.shape = False
        """An object with a name and arguments has begun."""
        self.name = ""
        """The last name read."""
        self.key = ""
        """The key of the last arguments read."""

    def list(self) -> Reading[None]:
        """Read `[{...}, {...}]`; entries that are no calls are passed over. Raises Malformed."""
        src = self._src
        expect(src, (yield from src.peek()), "[")
        char = yield from separator(src)
        while char != "]":
            if char == "{":
                yield from self.object()
            elif self.strict and not self.shape:
                raise NotACall
            else:
                yield from value(src, ignore)
            char = yield from separator(src)
            if char == ",":
                src.pos += 1
                char = yield from separator(src)
            elif char != "]":
                fail(src)
        if self.strict and not self.shape:
            raise NotACall
        src.pos += 1

    def object(self) -> Reading[None]:
        """Read `{...}`. Raises Malformed when it is no JSON; without a name and arguments it is passed over."""
        call = _Call()
        try:
            yield from self._members(call)
        except Malformed:
            # Models forget the last brace. What counts is that the arguments are complete.
            if call.complete or call.started:
                self._close(call)
            raise
        except NotACall:
            if call.started:
                self._sink.fail()
            raise
        self._close(call)

    def _close(self, call: _Call) -> None:
        if call.complete and call.name is not None:
            if not call.started:
                self._start(call, call.name)
            self._sink.end()
        elif call.started:
            self._sink.fail()
        elif self.strict and not self.shape:
            raise NotACall

    def _start(self, call: _Call, name: str) -> None:
        call.started = True
        self.shape = True
        self._sink.start(name)
        for text in call.arguments or ():
            self._sink.arguments(text)

    def _members(self, call: _Call, *, wrapped: bool = False) -> Reading[None]:
        src = self._src
        expect(src, (yield from src.peek()), "{")
        char = yield from separator(src)
        while char != "}":
            if char != '"':
                fail(src)
            key = yield from decoded_string(src, _MAX_KEY)
            expect(src, (yield from separator(src)), ":")
            yield from self._member(call, key, (yield from separator(src)), wrapped)
            char = yield from separator(src)
            if char == ",":
                src.pos += 1
                char = yield from separator(src)
            elif char != "}":
                fail(src)
        src.pos += 1

    def _member(self, call: _Call, key: str, char: str, wrapped: bool) -> Reading[None]:
        src = self._src
        if char == '"' and call.name is None and key in ("name", "function"):
            name = yield from decoded_string(src, _MAX_NAME)
            call.name = self.name = name
            if call.arguments is not None:
                self.shape = True
        elif key in ARGUMENTS and not call.complete and not call.started and call.arguments is None:
            self.key = key
            yield from self._arguments(call, char)
        elif key in _WRAPPERS and char == "{" and not wrapped:
            yield from self._members(call, wrapped=True)
        elif self.strict and not self.shape and key not in _OTHER_KEYS:
            raise NotACall
        else:
            yield from value(src, ignore)

    def _arguments(self, call: _Call, char: str) -> Reading[None]:
        src = self._src
        out = self._sink.arguments
        if char not in ("{", '"', "n"):
            if self.strict and char:
                raise NotACall
            yield from value(src, ignore)
            return
        if call.name is None:
            call.arguments = []
            out = call.arguments.append
        else:
            self._start(call, call.name)
        if char == "{":
            yield from value(src, out)
        elif char == '"':
            yield from string(src, out)
        else:
            yield from value(src, ignore)  # null
            out("{}")
        call.complete = True


def read_row(src: Source, sink: Sink, *resume: str, between: str = "") -> Reading[None]:
    """Read objects and lists one after the other, as long as another follows.

    resume: where to go on after JSON that is malformed; what stands before is passed over. Nothing: at the end.
    between: characters that may stand between two.
    """
    calls = JsonCalls(src, sink)
    try:
        while True:
            char = yield from separator(src)
            if char == "{":
                yield from calls.object()
            elif char == "[":
                yield from calls.list()
            elif char and char in between:
                src.pos += 1
            else:
                return
    except Unfinished:
        return
    except Malformed:
        yield from src.skip(*resume)
