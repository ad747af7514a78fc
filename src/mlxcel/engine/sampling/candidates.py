"""The tokens that are still in the running for one row."""

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
    """Tokens that survive so far, in the order of their ids.

    logits: float32 [n]; none is NaN or +inf, and -inf stands for a token that is out.
    ids: int64 [n], the token of each logit; None when every token is still there and the position is the id.
    """

    logits: Floats
    ids: Ids | None = None

    @property
    def peak(self) -> float:
        """The largest logit."""
        return float(self.logits.max())

    def at(self, positions: Ids) -> Candidates:
        """The candidates at rising `positions`."""
        ids = positions if self.ids is None else self.ids.take(positions)
        return Candidates(self.logits.take(positions), ids)

    def at_least(self, threshold: float) -> Candidates:
        """The candidates whose logits are not below `threshold`, which is rounded to single precision."""
        return self.at(np.flatnonzero(self.logits >= single(threshold)))

    def without(self, positions: Ids) -> Candidates:
        """The candidates with those at `positions` out."""
        logits = self.logits.copy()
        logits[positions] = -np.inf
        return Candidates(logits, self.ids)

    def token(self, position: int) -> int:
        """The token of the candidate at `position`."""
        return position if self.ids is None else int(self.ids[position])


def single(value: float) -> np.float32:
    """`value` in single precision; what is out of range becomes infinite."""
    with np.errstate(over="ignore"):
        return np.float32(value)
