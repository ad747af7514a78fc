"""Selection, probabilities and draws on one row of logits: which implementation runs here.

The definitions are the same in both, to the last bit: a row and a seed give the same token with and without the native
kernels.

A logit's weight is 2^(log2(e) (logit - largest) / temperature), in single precision and rounded to a multiple of 2^-35.
So sums of weights in double precision are exact, up to 2^18, in whatever order they are taken. A token that is 2^36
times less likely than the best one weighs nothing and is never drawn. Among equal logits the lower token ranks first.

Rows with NaN, +inf or nothing but -inf are for the caller to find, with `best`; the other methods do not expect them.
"""

from __future__ import annotations

from functools import cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mlxcel.engine.sampling.rows_numpy import NumpyRows

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]


class Rows(Protocol):
    """Operations on a row, float32 [n]. Positions come out rising."""

    def best(self, row: Floats) -> tuple[int, float]:
        """Position and value of the largest logit, the first of equals; those of the first NaN if there is one."""
        ...

    def top_k(self, row: Floats, k: int) -> Ids:
        """Positions of the `k` largest logits."""
        ...

    def at_least(self, row: Floats, threshold: float) -> Ids:
        """Positions of the logits that are not below `threshold`, which is rounded to single precision."""
        ...

    def nucleus(self, row: Floats, p: float) -> Ids:
        """Positions of the fewest best logits whose weight reaches the share `p` of all; never none."""
        ...

    def weights(self, row: Floats, temperature: float) -> Floats:
        """The weight of each logit."""
        ...

    def mass(self, row: Floats, temperature: float) -> tuple[float, float]:
        """The largest logit, and the sum of the weights."""
        ...

    def draw(self, row: Floats, temperature: float, uniform: float) -> int:
        """The first position up to which the weights exceed the share `uniform`, in [0, 1), of their sum."""
        ...

    def mask(self, row: Floats, words: Words, out: Floats) -> None:
        """Copy to `out` the logits whose bit in `words` is set, lowest bit first; the others become -inf."""
        ...

    def add_at(self, row: Floats, tokens: Ids, values: Floats) -> None:
        """Add `values` to the logits of `tokens`, each listed once, in place."""
        ...

    def penalise(
        self, row: Floats, tokens: Ids, counts: Floats, repetition: float, frequency: float, presence: float
    ) -> None:
        """Lower the logits of `tokens`, each listed once with how often it was seen, in place.

        Positive logits are divided by `repetition` and others multiplied; then `frequency` a count and `presence` go.
        """
        ...


@cache
def rows() -> Rows:
    """The native kernels where the installation has them and MLXCEL_KERNELS names some that can run; else numpy."""
    # Not at the top: the package of the kernels imports MLX, which a server does while it already answers.
    from mlxcel.kernels import native

    try:
        native.instruction_set()
    except (native.NativeUnavailable, ValueError):  # loading a model says why
        return NumpyRows()
    kernels: Rows = native.module().logits
    return kernels
