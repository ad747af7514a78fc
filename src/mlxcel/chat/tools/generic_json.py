"""JSON calls without any marker: the whole answer is `{"name": ..., "arguments": {...}}` or a list of such objects.

Nothing but its shape tells such a call from an answer in JSON, so it counts only when nothing follows it, and is kept
back until the end. The exception is Llama 3, whose calls are to be streamed: with its key (`parameters`) or under its
template a call to a declared function stands as soon as its arguments begin, and what follows is dropped.
"""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.chat.tools.json_calls import JsonCalls
from mlxcel.chat.tools.json_text import Malformed, Unfinished, separator
from mlxcel.chat.tools.llama3 import BETWEEN
from mlxcel.chat.tools.sink import Later, Sink
from mlxcel.chat.tools.source import NotACall, Reading, Source


def read(src: Source, sink: Sink, streams: Callable[[str], bool]) -> Reading[None]:
    """Read the whole answer, which begins with `{` or `[`.

    streams: whether a call with this key for its arguments may be streamed.

    Raises NotACall.
    """
    gate = _Gate(src, sink)
    calls = JsonCalls(src, gate, strict=True)
    gate.may_open = lambda: streams(calls.key)
    try:
        yield from (calls.list() if (yield from src.peek()) == "[" else calls.object())
        while char := (yield from separator(src)):
            if not gate.open:
                raise NotACall
            if char == "{":
                yield from calls.object()
            elif char == BETWEEN:
                src.pos += 1
            else:
                return
    except Malformed as error:
        if gate.open:
            yield from src.skip()
            return
        if not isinstance(error, Unfinished) or not (calls.shape or sink.tools.accept(calls.name)):
            raise NotACall from error
    src.commit()
    gate.pour(sink)


class _Gate(Later):
    """Keeps calls back until one comes that may be streamed; from then on it lets everything through."""

    def __init__(self, src: Source, sink: Sink) -> None:
        super().__init__(sink.tools)
        self._src = src
        self._sink = sink
        self._begun = False
        self.open = False
        self.may_open: Callable[[], bool] = lambda: False

    def start(self, name: str) -> None:
        if not self._begun and self.may_open() and self.tools.accept(name):
            self._src.commit()
            self.open = True
        self._begun = True
        (self._sink.start if self.open else super().start)(name)

    def arguments(self, text: str) -> None:
        (self._sink.arguments if self.open else super().arguments)(text)

    def end(self) -> None:
        (self._sink.end if self.open else super().end)()

    def fail(self) -> None:
        (self._sink.fail if self.open else super().fail)()
