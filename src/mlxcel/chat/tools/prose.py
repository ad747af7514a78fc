"""The part of an answer that is shown, and the tokens of the part that is not."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from mlxcel.engine.events import TextPiece, TokenLogprob


class Prose:
    """Text for the user around calls, as pieces with every token's log probabilities exactly once.

    Whitespace is kept back until it is clear what follows: beside markup it is dropped, except that the whitespace on
    one side goes on separating two texts when the markup between was no call. Text after a call is dropped.

    A token that shows nothing gives a piece without text, so that pieces and tokens stay one to one. A token shown
    in part waits until all of it is shown or hidden. Positions count characters of the whole stream.
    """

    def __init__(self, emit: Callable[[TextPiece], None]) -> None:
        self._emit = emit
        self._entries: deque[tuple[int, Sequence[TokenLogprob]]] = deque()  # (end of the piece, its entries)
        self._end = 0  # of the stream so far
        self._position = 0  # all before is shown or hidden
        self._shown: list[str] = []  # shown text whose piece is not complete yet
        self._space: list[str] = []  # whitespace whose turn has not come
        self._separator = ""  # goes before the next text
        self._space_after: list[str] = []  # whitespace after markup, for want of some before it
        self._after_markup = False
        self.any = False
        """Whether there is text."""
        self.closed = False
        """Text is dropped: a call has begun."""

    @property
    def waiting(self) -> bool:
        """Whether there are tokens whose entries have not been given."""
        return bool(self._entries)

    def push(self, piece: TextPiece) -> None:
        """Note a piece of the stream, before its text is read."""
        self._end += len(piece.text)
        if piece.logprobs:
            self._entries.append((self._end, piece.logprobs))

    def text(self, text: str) -> None:
        """The next characters of the stream are text."""
        if self.closed:
            self.hide(self._position + len(text))
            return
        start = self._after_markup and len(text) - len(text.lstrip())
        if start:
            self.hide(self._position + start)
            if not self._separator:
                self._space_after.append(text[:start])
            text = text[start:]
        if not text:
            return
        self._after_markup = False
        body = text.rstrip()
        if body:
            self._show_space()
            self._show(body)
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def markup(self) -> None:
        """What comes next in the stream, up to the next text, is markup."""
        space = "".join(self._space)
        self._space.clear()
        self.hide(self._position + len(space))
        self._separator = self._separator or space or "".join(self._space_after)
        self._space_after.clear()
        self._after_markup = True

    def message(self) -> None:
        """A new message for the user begins; it stands on a line of its own."""
        self._separator = "\n"

    def close(self) -> None:
        """A call has begun. Text before it goes out first, even if its token goes on."""
        self.markup()
        self.closed = True
        self._give(())

    def hide(self, position: int) -> None:
        """Everything before `position` that is not shown yet never will be; not with whitespace waiting."""
        if not self._space and position > self._position:
            self._position = position
            self.settle()

    def flush(self) -> None:
        """Give shown text that no token waits for."""
        if not self._entries and self._shown:
            self._give(())

    def finish(self) -> None:
        """The stream is over: whitespace at its end is text."""
        self._show_space()
        self.hide(self._end)
        self.settle()
        self.flush()

    def _show_space(self) -> None:
        for space in self._space:
            self._show(space)
        self._space.clear()

    def _show(self, text: str) -> None:
        """Show text that stands at the position."""
        if self.any:
            self._shown.append(self._separator or "".join(self._space_after))
        self._separator = ""
        self._space_after.clear()
        self.any = True
        start = self._position
        self._position += len(text)
        taken = 0
        while self._entries and self._entries[0][0] <= self._position:
            end, entries = self._entries.popleft()
            self._shown.append(text[taken : max(taken, end - start)])
            taken = max(taken, end - start)
            self._give(entries)
        self._shown.append(text[taken:])

    def settle(self) -> None:
        """Give the entries of tokens that end where reading stands."""
        while self._entries and self._entries[0][0] <= self._position:
            self._give(self._entries.popleft()[1])

    def _give(self, entries: Sequence[TokenLogprob]) -> None:
        text = "".join(self._shown)
        self._shown.clear()
        if text or len(entries) == 1:
            self._emit(TextPiece(text, tuple(entries)))
        else:
            for entry in entries:
                self._emit(TextPiece("", (entry,)))
