"""From token ids to text that can be shown: bytes, then UTF-8, then stop strings.

Three small state machines in a row. What leaves the last one never changes again, so a streamed answer joined
equals the answer given at once, whatever the tokens' borders are.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Mapping, Sequence

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.events import TextPiece, TokenLogprob
from mlxcel.engine.needle import Needle


class StopMatcher:
    """Finds the first of several stop strings in a text that arrives in pieces.

    The earliest occurrence wins, and at equal positions the one named first. Text that could still turn out to
    belong to a match is held back. The outcome does not depend on how the text is cut: a complete match is acted on
    only when no better one can still be completed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._needles = {index: Needle(stop) for index, stop in enumerate(stops) if stop}
        self._held = ""
        self._end = 0  # characters taken in
        self._found: tuple[int, int, str] | None = None  # best complete match: position, list index, stop string
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece; return what is now certain to be shown. Sets `matched` when a stop string was met."""
        if not self._needles:
            return text
        for index, needle in list(self._needles.items()):
            end = next((end for end, character in enumerate(text, 1) if needle.advance(character)), None)
            if end is not None:
                found = (self._end + end - len(needle.text), index, needle.text)
                self._found = min(found, self._found or found)
                del self._needles[index]  # its later occurrences cannot be better
        self._held += text
        self._end += len(text)
        pending = min(
            ((self._end - needle.matched, index) for index, needle in self._needles.items() if needle.matched),
            default=None,
        )
        if self._found is not None and (pending is None or self._found[:2] < pending):
            return self._stop(self._found)
        return self._release(self._end if pending is None else pending[0])

    def flush(self) -> str:
        """End of the text: return what was held back, up to a match that was still waiting for a better one."""
        return self._release(self._end) if self._found is None else self._stop(self._found)

    def _stop(self, found: tuple[int, int, str]) -> str:
        position, _, self.matched = found
        shown = self._release(position)
        self._held = ""
        return shown

    def _release(self, position: int) -> str:
        """Take the held text up to `position`."""
        count = len(self._held) - (self._end - position)
        shown, self._held = self._held[:count], self._held[count:]
        return shown


class TextState:
    """Text of one sequence: takes tokens, gives the pieces that may be shown, each with its tokens' log
    probabilities.

    spelling: text of the special tokens that are shown; the others have none.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], spelling: Mapping[int, str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._spelling = {token: text.encode() for token, text in (spelling or {}).items()}
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
        text = self._utf8.decode(self._spelling.get(token_id) or self._tokenizer.token_bytes(token_id))
        self._decoded += len(text)
        if logprob is not None:
            self._waiting.append((self._decoded, logprob))
        return self._release(self._stop.feed(text))

    def interrupt(self) -> None:
        """The next token does not go on from the last one: drop the bytes of a character that was begun."""
        self._utf8.reset()

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
