"""Text in, message out: content, tool calls, and what the finish reason becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mlxcel.chat.tools import command_r, functionary_v32, generic_json, harmony, pythonic
from mlxcel.chat.tools.dialect import Dialect
from mlxcel.chat.tools.ids import chat_id
from mlxcel.chat.tools.markers import CLOSING, ORDINARY, SPECIAL, STRAY, Reader
from mlxcel.chat.tools.prose import Prose
from mlxcel.chat.tools.sink import CallArguments, Calls, CallStart, Sink, ToolCall
from mlxcel.chat.tools.source import NotACall, Reading, Source
from mlxcel.chat.tools.toolset import ToolSet
from mlxcel.engine.events import FinishReason, StopKind, TextPiece

Delta = TextPiece | CallStart | CallArguments
"""What one more piece of text adds to the message: content, or a part of a call."""

TOOL_CALLS = "tool_calls"
"""The finish reason of an answer that ends in calls."""

_FAR = 512
"""A bare list that turns out to be none only after so many characters is the last one looked for: no text is read
more than a bounded number of times."""


@dataclass(frozen=True, slots=True)
class Message:
    """A complete answer."""

    content: str
    calls: tuple[ToolCall, ...]
    finish_reason: str
    abandoned: tuple[CallStart, ...] = field(default=())
    """Calls of which a part was streamed, and which are not in `calls`: malformed, or cut off."""


class ToolStream:
    """Finds the calls in one answer while it is generated.

    The text comes without its reasoning, in pieces of any size; what comes out, joined, does not depend on the pieces.
    Without declared functions everything is content, as it stands (Harmony's markup is still removed under its own
    dialect).
    """

    def __init__(
        self,
        tools: ToolSet,
        dialect: Dialect | None = None,
        *,
        new_id: Callable[[], str] = chat_id,
    ) -> None:
        """dialect: the format of the model's template, None when that shows none: every format is looked for, the
        dialect decides where two could be meant."""
        self._dialect = dialect
        self.message = Message("", (), FinishReason.ERROR.value)
        """The complete answer, once `finish` was called."""
        self._deltas: list[Delta] = []
        self._content: list[str] = []
        self._prose = Prose(self._emit)
        self._calls = Calls(tools, new_id, self._emit, self._prose.close)
        self._src = Source()
        self._src.on_commit = self._prose.markup
        self._plain = not tools and dialect is not Dialect.HARMONY
        self._furthest = 0  # where the last reader that found no call gave up
        if dialect is Dialect.HARMONY:
            self._own_harmony()
        else:
            special = {**SPECIAL, harmony.CHANNEL: self._read_channel}
            self._look_for(special, {**ORDINARY, harmony.START: self._read_start})
        self._run = self._read()
        next(self._run)

    @property
    def waiting(self) -> bool:
        """Whether log probabilities are held back."""
        return self._prose.waiting

    def feed(self, piece: TextPiece) -> list[Delta]:
        """Take the next piece of the answer; give what can be shown now."""
        self._prose.push(piece)
        if self._plain:
            self._prose.text(piece.text)
        else:
            self._src.feed(piece.text)
            next(self._run)
            self._prose.hide(self._src.settled)
        self._prose.settle()
        return self._take()

    def finish(self, reason: FinishReason, kind: StopKind = StopKind.EOS, stop: str | None = None) -> list[Delta]:
        """The answer is over: give the rest. `message` is valid from now on.

        kind, stop: what ended it, and the stop string if that did. Unless the model was done, or the string is what
        closes a call, a call that is still open was cut off: a client must not run a half of it.
        """
        done = kind is StopKind.EOS or (stop is not None and stop.strip() in CLOSING)
        self._src.end(cut=reason is not FinishReason.STOP or not done)
        for _ in self._run:
            raise RuntimeError("a reader waits for text after the end")
        self._prose.finish()
        calls = tuple(self._calls.done)
        self.message = Message(
            "".join(self._content),
            calls,
            TOOL_CALLS if calls and reason is FinishReason.STOP else reason.value,
            tuple(self._calls.abandoned),
        )
        return self._take()

    # Reading. The generators below run through the whole answer; `feed` lets them go on.

    def _read(self) -> Reading[None]:
        self._src.mark()
        yield from self._try(self._beginning)
        while True:
            found = yield from self._src.until(*self._marks, out=self._prose.text)
            if not found:
                return
            yield from self._markup(found)

    def _beginning(self, src: Source, sink: Sink) -> Reading[None]:
        """Read the calls that are told by standing at the beginning. Raises NotACall."""
        yield from src.space()
        if self._dialect is Dialect.HARMONY:
            if not (yield from src.sees(harmony.RECIPIENT)):  # the prompt ends inside a header
                raise NotACall
            yield from self._read_start(src, sink)
        elif (yield from src.sees("{", "[")):
            yield from generic_json.read(src, sink, self._streams)
        elif (yield from src.sees(command_r.OPEN)):
            yield from command_r.read(src, sink)
        elif (yield from src.takes(functionary_v32.MARK)):
            yield from functionary_v32.read(src, sink)
        elif self._dialect is Dialect.FUNCTIONARY_V32:
            yield from functionary_v32.read_primed(src, sink)
        else:
            raise NotACall

    def _streams(self, key: str) -> bool:
        """Whether JSON without a marker is Llama 3's, by the key of its arguments."""
        return self._dialect is Dialect.LLAMA3 or (self._dialect is not Dialect.GENERIC_JSON and key == "parameters")

    def _markup(self, mark: str) -> Reading[None]:
        """Read a mark that is about to come, and the call it begins."""
        src = self._src
        if mark in self._ordinary:
            yield from self._ordinary_mark(mark)
            return
        src.pos += len(mark)
        self._prose.markup()
        self._prose.hide(src.offset)
        if mark in self._special:
            src.mark()
            yield from self._try(self._special[mark])

    def _ordinary_mark(self, mark: str) -> Reading[None]:
        src = self._src
        visible = mark.lstrip()
        space = len(mark) - len(visible)  # a line break that belongs to the text before
        self._prose.text(mark[:space])
        src.pos += space
        src.mark()
        src.pos += len(visible)
        start = src.offset
        if (yield from self._try(self._ordinary[mark])):
            return
        self._prose.text(visible)
        src.pos += len(visible)
        if mark == pythonic.BARE_OPEN and self._furthest - start > _FAR:
            self._look_for(self._special, {key: self._ordinary[key] for key in self._ordinary if key != mark})

    def _try(self, reader: Reader) -> Reading[bool]:
        """Have a call read. False: it was none, and reading is back at the mark."""
        src = self._src
        try:
            yield from reader(src, self._calls)
        except NotACall:
            if not src.committed:
                self._furthest = src.offset
                src.rewind()
                return False
        src.commit()
        self._prose.hide(src.offset)
        self._prose.closed = self._calls.any
        return True

    def _read_channel(self, src: Source, sink: Sink) -> Reading[None]:
        yield from harmony.read(src, sink, self._prose.message)
        self._own_harmony()

    def _read_start(self, src: Source, sink: Sink) -> Reading[None]:
        yield from harmony.read_start(src, sink, self._prose.message)
        self._own_harmony()

    def _own_harmony(self) -> None:
        """Look for nothing but Harmony's marks from now on."""
        special = {harmony.CHANNEL: self._read_channel, harmony.START: self._read_start}
        self._look_for(special, {}, frozenset(harmony.MARKS) - special.keys())

    def _look_for(self, special: dict[str, Reader], ordinary: dict[str, Reader], stray: frozenset[str] = STRAY) -> None:
        self._special = special
        self._ordinary = ordinary
        self._marks = (*special, *ordinary, *stray)

    def _emit(self, delta: Delta) -> None:
        if isinstance(delta, TextPiece):
            self._content.append(delta.text)
        self._deltas.append(delta)

    def _take(self) -> list[Delta]:
        self._calls.flush()
        self._prose.flush()
        deltas, self._deltas = self._deltas, []
        return deltas


def whole(
    text: str, tools: ToolSet, dialect: Dialect | None = None, reason: FinishReason = FinishReason.STOP
) -> Message:
    """The message that a complete answer makes."""
    stream = ToolStream(tools, dialect)
    stream.feed(TextPiece(text))
    stream.finish(reason)
    return stream.message
