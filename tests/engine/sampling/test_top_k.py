from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.top_k import top_k

from .oracle import kept, rows, voice


@given(rows, st.integers(-1, 70))
def test_the_largest_stay(row: np.ndarray, k: int) -> None:
    size = len(row) if k <= 0 else min(k, len(row))
    wanted = np.argsort(-row, kind="stable")[:size]
    expected = np.isin(np.arange(len(row)), wanted) & (row > -np.inf)
    assert np.array_equal(kept(top_k(Candidates(row), k), row), expected)


def test_the_size_of_the_vocabulary_is_off() -> None:
    row = np.random.default_rng(1).normal(size=64).astype(np.float32)
    all_of_them, off = voice(top_k=64, seed=5), voice(top_k=0, seed=5)
    assert [all_of_them(row) for _ in range(20)] == [off(row) for _ in range(20)]
