"""What the tests of the stages share: random rows, and plain definitions in double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from mlxcel.engine.constraint import Words
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.rows import Rows
from mlxcel.engine.sampling.rows_numpy import NumpyRows
from mlxcel.engine.sampling.sampler import Chosen, Sampler, sample

from ..scripted import ByteTokenizer

OFF: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Nothing but a draw."""


def made(seed: int, size: int, scale: float, masked: float) -> np.ndarray:
    """Random logits, a share of them -inf; the first is finite."""
    random = np.random.default_rng(seed)
    row = random.normal(scale=scale, size=size).astype(np.float32)
    row[1:][random.random(size - 1) < masked] = -np.inf
    return row


rows = st.builds(
    made,
    st.integers(0, 2**32 - 1),
    st.integers(1, 60),
    st.sampled_from([0.1, 1.0, 3.0, 8.0]),
    st.sampled_from([0, 0.3]),
)
shares = st.floats(0.0, 1.0)


def softmax(row: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    weights = np.exp((row.astype(np.float64) - row.max()) / temperature)
    return weights / weights.sum()


def entropy(probability: np.ndarray) -> float:
    """In nats."""
    positive = probability[probability > 0]
    return float(-(positive * np.log(positive)).sum())


def kept(candidates: Candidates, row: np.ndarray) -> np.ndarray:
    """Whether each token of the row survives. Every survivor has its own logit."""
    ids = np.arange(row.shape[0]) if candidates.ids is None else candidates.ids
    assert ids.tolist() == sorted(set(ids.tolist()))
    finite = candidates.logits > -np.inf
    assert np.array_equal(row[ids[finite]], candidates.logits[finite])
    out = np.zeros(row.shape[0], bool)
    out[ids[finite]] = True
    return out


def agree(found: np.ndarray, values: np.ndarray, limits: np.ndarray | float, tolerance: float) -> None:
    """`found` says which values are at least the limits; rounding may decide those that are close to them."""
    with np.errstate(invalid="ignore"):
        clear = ~(np.abs(values - limits) <= tolerance)
    assert np.array_equal(found[clear], (values >= limits)[clear])


class Voice:
    """One sequence without a model."""

    def __init__(
        self,
        params: SamplingParams,
        prompt: tuple[int, ...] = (),
        operations: Rows | None = None,
        alternatives: int | None = None,
        mask: Words | None = None,
    ) -> None:
        self.sampler = Sampler(params, prompt, ByteTokenizer())
        self.alternatives = alternatives
        self.mask = mask
        self.forced: int | None = None
        self._operations = NumpyRows() if operations is None else operations

    def next(self, row: np.ndarray) -> Chosen:
        """What is chosen from a row of logits, which stays as it was."""
        logits = row[None].copy()
        (outcome,) = sample([self], logits, self._operations)
        assert np.array_equal(logits[0], row, equal_nan=True)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def __call__(self, row: np.ndarray) -> int:
        """The next token."""
        return self.next(row).token


def voice(prompt: tuple[int, ...] = (), **values: Any) -> Voice:
    """A sequence that only draws, but for what `values` say."""
    return Voice(SamplingParams(**{**OFF, "seed": 1, **values}), prompt)
