"""From token ids to text that can be shown: bytes, then UTF-8, then stop strings.

Three small state machines in a row. What leaves the last one never changes again, so a streamed answer joined
equals the answer given at once, whatever the tokens' borders are.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.events import TextPiece, TokenLogprob


class StopMatcher:
    """Finds the first of several stop strings in a text that arrives in pieces.

    The earliest occurrence wins, and at equal positions the one named first. Text that could still turn out to
    belong to a match is held back. The outcome does not depend on how the text is cut: a complete match is acted on
    only when no better one can still be completed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece and return what is now certain to be shown. Sets `matched` when a stop string was met."""
        if not self._stops:
            return text
        buffer = self._held + text
        found = self._best_match(buffer)
        pending = self._best_pending(buffer)
        if found is not None and (pending is None or found < pending):
            return self._stop_at(buffer, found)
        keep = len(buffer) if pending is None else pending[0]
        self._held = buffer[keep:]
        return buffer[:keep]

    def flush(self) -> str:
        """End of the text: return what was held back, up to a match that was still waiting for a better one."""
        buffer, self._held = self._held, ""
        found = self._best_match(buffer)
        return buffer if found is None else self._stop_at(buffer, found)

    def _stop_at(self, buffer: str, found: tuple[int, int]) -> str:
        position, index = found
        self.matched = self._stops[index]
        self._held = ""
        return buffer[:position]

    def _best_match(self, buffer: str) -> tuple[int, int] | None:
        """(position, list index) of the best complete occurrence."""
        found = [(position, index) for index, stop in enumerate(self._stops) if (position := buffer.find(stop)) >= 0]
        return min(found, default=None)

    def _best_pending(self, buffer: str) -> tuple[int, int] | None:
        """(position, list index) of the earliest stop string that has begun at the end of the buffer."""
        pending: list[tuple[int, int]] = []
        for index, stop in enumerate(self._stops):
            for position in range(max(0, len(buffer) - len(stop) + 1), len(buffer)):
                if stop.startswith(buffer[position:]):
                    pending.append((position, index))
                    break
        return min(pending, default=None)


class TextState:
    """Text of one sequence: takes tokens, gives the pieces that may be shown, each with its tokens' log
    probabilities."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stop = StopMatcher(stops)
        self._decoded = 0  # characters that left the UTF-8 decoder
        self._released = 0  # characters that left the stop matcher
        self._waiting: deque[tuple[int, TokenLogprob]] = deque()  # (end of the token's text, entry)
        self._entries_end = 0  # end of the last token whose entry was given

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stop.matched

    def push(self, token_id: int, logprob: TokenLogprob | None = None) -> TextPiece | None:
        """Add a token. None: nothing new can be shown yet."""
        text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
        self._decoded += len(text)
        if logprob is not None:
            self._waiting.append((self._decoded, logprob))
        return self._release(self._stop.feed(text))

    def finish(self) -> TextPiece | None:
        """End of the tokens: give what was held back. Bytes of a character that was never completed are dropped."""
        return self._release(self._stop.flush())

    def _release(self, text: str) -> TextPiece | None:
        self._released += len(text)
        entries: list[TokenLogprob] = []
        while self._waiting and self._waiting[0][0] <= self._released:
            self._entries_end, entry = self._waiting.popleft()
            entries.append(entry)
        if self.matched is not None:
            # The token in which the match begins may show text before it; those inside the match show none.
            if self._waiting and self._entries_end < self._released:
                entries.append(self._waiting.popleft()[1])
            self._waiting.clear()
        if not text and not entries:
            return None
        return TextPiece(text, tuple(entries))
