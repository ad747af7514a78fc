"""How many prompt tokens to read in one step while running streams wait for it.

Reading a token costs more the more there are before it, and machines differ by orders of magnitude, so the size follows
what was measured. Pure arithmetic over the seconds it is told, without a clock.
"""

from __future__ import annotations

PIECE_SECONDS = 0.25
"""How long streams may wait for a piece of a prompt."""
LEAST_SHARE = 0.4
"""Of the time, for the prompt: where decoding is slow, pieces may take longer, or a prompt would never be read."""
FIRST_PIECE = 128
"""Tokens where nothing is known about the time they take."""
UNIT = 32
"""Pieces are multiples of it: fewer tokens take hardly less time."""


class Pace:
    """Sizes of pieces.

    most: tokens in a piece; 0: the whole prompt in any case. interval: decode steps between two pieces.
    """

    def __init__(self, most: int, interval: int) -> None:
        self._most = most
        self._interval = interval
        self._rate: float | None = None  # tokens a second, in the last piece that was long enough to tell
        self._place = 0  # where in its prompt that one ended
        self._step = 0.0  # seconds of a decode step

    def piece(self, start: int) -> int:
        """Tokens to read of a prompt of which `start` are read; 0: all."""
        if self._most <= 0:
            return 0
        tokens: float = FIRST_PIECE
        if self._rate is not None and start <= 2 * self._place + self._most:  # not much deeper than was measured
            share = self._interval * self._step * LEAST_SHARE / (1 - LEAST_SHARE)
            tokens = self._rate * max(PIECE_SECONDS, share)
        return min(self._most, max(UNIT, round(min(tokens, self._most) / UNIT) * UNIT))

    def read(self, tokens: int, end: int, seconds: float) -> None:
        """A piece was read, up to the place `end` of its prompt. seconds: 0 when nobody looked."""
        if tokens >= UNIT and seconds > 0:
            self._rate, self._place = tokens / seconds, end

    def decoded(self, seconds: float) -> None:
        """A decode step was done."""
        self._step += 0.2 * (seconds - self._step)
