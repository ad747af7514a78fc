from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.top_n_sigma import top_n_sigma

from .oracle import agree, kept, rows


@given(rows, st.floats(0.01, 6.0))
def test_logits_within_some_deviations_of_the_largest_stay(row: np.ndarray, n: float) -> None:
    found = kept(top_n_sigma(Candidates(row), n), row)
    deviation = row[np.isfinite(row)].astype(np.float64).std()
    agree(found, row.astype(np.float64), float(row.max()) - n * deviation, 1e-4)
    assert found[row.argmax()]


def test_masked_tokens_count_for_nothing_and_stay_out() -> None:
    row = np.array([4.0, 3.0, 2.0, 1.0, 0.0], np.float32)
    masked = np.concatenate((row, np.full(100, -np.inf, np.float32)))
    found = kept(top_n_sigma(Candidates(masked), 1.0), masked)
    assert found.tolist() == [True, True] + [False] * 103  # the deviation of 0 to 4 is 1.41


def test_zero_keeps_all() -> None:
    row = np.array([4.0, -3.0, -np.inf], np.float32)
    assert top_n_sigma(Candidates(row), 0.0).ids is None


def test_the_largest_floats_are_no_trouble() -> None:
    row = np.array([3e38, -3e38, 3e38], np.float32)
    assert kept(top_n_sigma(Candidates(row), 1.0), row)[[0, 2]].all()
