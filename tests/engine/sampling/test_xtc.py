from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.xtc import exclude_top_choices

from .oracle import kept, made, rows, softmax, voice

HALVES = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))


@given(rows, st.floats(0.0, 0.5))
def test_all_likely_tokens_but_the_least_likely_go(row: np.ndarray, threshold: float) -> None:
    probability = softmax(row)
    assume((np.abs(probability - threshold) > 1e-6).all())
    found = kept(exclude_top_choices(Candidates(row), threshold), row)
    likely = probability > threshold
    expected = row > -np.inf
    if likely.sum() >= 2:
        expected &= ~likely
        lowest = row[likely].min()
        last = np.flatnonzero(likely & (row == lowest))[-1]
        expected[last] = True
        assert (found & likely).sum() == 1
    assert np.array_equal(found, expected)


def test_it_sees_what_the_filters_left() -> None:
    assert {voice(xtc_probability=1.0, xtc_threshold=0.25, seed=seed)(HALVES) for seed in range(80)} == {1, 2, 3}
    # Among three, 0.2 becomes 0.22; among two, 0.3 becomes 0.43.
    assert {voice(xtc_probability=1.0, xtc_threshold=0.21, top_k=3, seed=s)(HALVES) for s in range(80)} == {2}
    assert {voice(xtc_probability=1.0, xtc_threshold=0.4, top_k=2, seed=s)(HALVES) for s in range(80)} == {1}


def test_a_threshold_above_a_half_is_off_and_draws_nothing() -> None:
    row = made(3, 50, 1.0, 0.0)
    for values in ({"xtc_threshold": 0.51, "xtc_probability": 1.0}, {"xtc_probability": 0.0}):
        with_it, without = voice(seed=3, **values), voice(seed=3)
        assert [with_it(row) for _ in range(20)] == [without(row) for _ in range(20)]


def test_it_acts_as_often_as_asked() -> None:
    sure = np.log(np.array([0.55, 0.45], np.float32))
    speaks = voice(xtc_probability=0.25, xtc_threshold=0.1, seed=2)
    share = np.mean([speaks(sure) == 1 for _ in range(8000)])
    assert abs(share - (0.25 + 0.75 * 0.45)) < 0.02
