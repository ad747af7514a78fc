"""Where readers put the calls they find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mlxcel.chat.tools.toolset import ToolSet

_MAX_CALLS = 1024


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call. `arguments` is the string the model wrote, or JSON made of what it wrote."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: the `index`-th of the answer, from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments."""

    index: int
    text: str


class Sink(Protocol):
    """Takes calls, one after the other: `start`, any number of `arguments`, then `end` or `fail`."""

    @property
    def tools(self) -> ToolSet: ...

    def start(self, name: str) -> None:
        """A call begins. When it is to no declared function, everything up to its end is ignored."""
        ...

    def arguments(self, text: str) -> None:
        """More of its arguments."""
        ...

    def end(self) -> None:
        """It is complete."""
        ...

    def fail(self) -> None:
        """It turned out to be malformed, or was cut off."""
        ...


def whole(sink: Sink, name: str, arguments: str) -> None:
    """Put a complete call."""
    sink.start(name)
    sink.arguments(arguments)
    sink.end()


class Later:
    """A sink that keeps calls until it is known whether they are any."""

    def __init__(self, tools: ToolSet) -> None:
        self.tools = tools
        self._calls: list[tuple[str, list[str]]] = []
        self.count = 0
        """Complete calls, also such as are to no declared function."""

    def start(self, name: str) -> None:
        self._calls.append((name, []))

    def arguments(self, text: str) -> None:
        self._calls[-1][1].append(text)

    def end(self) -> None:
        self.count += 1

    def fail(self) -> None:
        self._calls.pop()

    def pour(self, sink: Sink) -> None:
        """Put the calls into another sink."""
        for name, arguments in self._calls:
            whole(sink, name, "".join(arguments))
        self._calls.clear()


class Calls:
    """The calls of one answer: filters undeclared ones, numbers the others and streams them."""

    def __init__(
        self,
        tools: ToolSet,
        new_id: Callable[[], str],
        emit: Callable[[CallStart | CallArguments], None],
        on_start: Callable[[], None],
    ) -> None:
        self.tools = tools
        self.done: list[ToolCall] = []
        """Complete calls, in order."""
        self.abandoned: list[CallStart] = []
        """Calls that were started, and then turned out to be none."""
        self._new_id = new_id
        self._emit = emit
        self._on_start = on_start
        self._started = 0
        self._current: CallStart | None = None
        self._arguments: list[str] = []
        self._pending: list[str] = []

    @property
    def any(self) -> bool:
        """Whether a call is complete or under way."""
        return bool(self.done) or self._current is not None

    def start(self, name: str) -> None:
        accepted = self.tools.accept(name)
        if accepted is None or self._started == _MAX_CALLS:
            return
        self._on_start()
        self._current = CallStart(self._started, self._new_id(), accepted)
        self._started += 1
        self._emit(self._current)

    def arguments(self, text: str) -> None:
        if self._current is not None:
            self._pending.append(text)

    def end(self) -> None:
        if self._current is not None:
            self.flush()
            self.done.append(ToolCall(self._current.id, self._current.name, "".join(self._arguments)))
            self._close()

    def fail(self) -> None:
        if self._current is not None:
            self.flush()
            self.abandoned.append(self._current)
            self._close()

    def flush(self) -> None:
        """Stream what has gathered of the current call's arguments."""
        text = "".join(self._pending)
        self._pending.clear()
        if self._current is not None and text:
            self._arguments.append(text)
            self._emit(CallArguments(self._current.index, text))

    def _close(self) -> None:
        self._current = None
        self._arguments.clear()
