"""The tokens that are still in the running for one row."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlxcel.engine.sampling.rows import Floats, Ids, Rows, rows


class SamplingError(Exception):
    """A row cannot be sampled: its logits are not numbers."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that survive so far, in the order of their ids.

    logits: float32 [n].
    ids: int64 [n], the token of each logit; None when every token is still there and the position is the id.
    rows: what works on the logits.
    """

    logits: Floats
    ids: Ids | None = None
    rows: Rows = field(default_factory=rows)

    def at(self, positions: Ids) -> Candidates:
        """The candidates at rising `positions`."""
        ids = positions if self.ids is None else self.ids.take(positions)
        return Candidates(self.logits.take(positions), ids, self.rows)

    def draw(self, temperature: float, uniform: float) -> int:
        """A token, each with the probability that the softmax of `logits / temperature` gives it.

        uniform: a random number in [0, 1).
        """
        position = self.rows.draw(self.logits, temperature, uniform)
        return position if self.ids is None else int(self.ids[position])
