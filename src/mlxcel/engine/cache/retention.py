"""Which keys and values of a long sequence are kept, when there may only be so many."""

from __future__ import annotations

from dataclasses import dataclass

SINK = 64
"""First tokens that stay, because attention leans on them: a block of the native caches, which drop whole ones."""


@dataclass(frozen=True, slots=True)
class Retention:
    """A sequence keeps what belongs to its first SINK tokens and to its latest ones, all with the places they have in
    the text.

    When `most` are there and another one comes, the `step` oldest after the first SINK are forgotten. That happens
    after fixed numbers of tokens, so what a token sees depends on its place, not on the pieces a prompt was read in.
    """

    most: int
    """Tokens of which something is kept: a multiple of SINK, at least 4 of them."""

    @classmethod
    def within(cls, size: int) -> Retention:
        """At most `size` tokens, `mlxcel.config.MIN_KV_SIZE` or more."""
        return cls(size // SINK * SINK)

    @property
    def step(self) -> int:
        """Tokens that are forgotten at once: an eighth of all, in whole blocks."""
        return max(1, self.most // 8 // SINK) * SINK

    def piece_end(self, start: int) -> int:
        """Where a piece of a prompt that begins at `start` must end at the latest: nothing is forgotten in between."""
        if start < self.most:
            return self.most
        return start + self.step - (start - self.most) % self.step
