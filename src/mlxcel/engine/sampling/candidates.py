"""The tokens that are still in the running for one row, and helpers every stage shares."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class SamplingError(Exception):
    """A row cannot be sampled: its logits are not numbers."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that survive so far.

    logits: float32 [n].
    ids: int64 [n], the token of each logit; None when every token is still there and the position is the id.
    ordered: logits fall from first to last.
    """

    logits: Floats
    ids: Ids | None = None
    ordered: bool = False

    def sort(self) -> Candidates:
        """Most likely first; equal logits by token id, so that the order never depends on the sort."""
        if self.ordered:
            return self
        order = np.argsort(-self.logits, kind="stable")
        ids = order if self.ids is None else self.ids[order]
        return Candidates(self.logits[order], ids, ordered=True)

    def first(self, n: int) -> Candidates:
        """The first `n` of an ordered set."""
        return Candidates(self.logits[:n], None if self.ids is None else self.ids[:n], self.ordered)

    def where(self, keep: npt.NDArray[np.bool_]) -> Candidates:
        """The candidates at the positions where `keep` is true."""
        ids = np.flatnonzero(keep) if self.ids is None else self.ids[keep]
        return Candidates(self.logits[keep], ids, self.ordered)

    def probabilities(self, temperature: float = 1.0) -> npt.NDArray[np.float64]:
        """Softmax of `logits / temperature` over the candidates, float64 [n]. `-inf` logits get exactly 0."""
        # Shifted before the division, so that a tiny temperature cannot overflow.
        shifted = self.logits.astype(np.float64) - float(self.logits.max())
        with np.errstate(over="ignore"):  # far below the best: -inf, and so probability 0, is right
            weights = np.exp(shifted / temperature)
        return weights / weights.sum()
