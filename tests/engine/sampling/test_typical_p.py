from __future__ import annotations

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.typical_p import typical_p

from .oracle import entropy, kept, rows, softmax


@given(rows, st.floats(0.01, 0.999))
def test_the_tokens_closest_to_the_entropy_stay(row: np.ndarray, p: float) -> None:
    probability = softmax(row)
    with np.errstate(divide="ignore"):
        distance = np.abs(-np.log(probability) - entropy(probability))
    assume((probability[probability > 0] > 1e-9).all())  # less weighs next to nothing, and then little is certain
    found = kept(typical_p(Candidates(row), p), row)
    farthest = distance[found].max()
    assert found[distance < farthest - 1e-4].all(), "none that is closer is left out"
    assert probability[found].sum() >= p - 1e-5, "they reach the share"
    closer = found & (distance < farthest - 1e-4)
    assert probability[closer].sum() < p + 1e-5, "and need all of themselves for it"


def test_the_best_token_may_go() -> None:
    row = np.log(np.array([0.45, *[0.55 / 40] * 40], np.float32))
    found = kept(typical_p(Candidates(row), 0.5), row)
    assert not found[0]
    assert found.sum() == 37  # the first of equals: 37 of them make half


def test_one_keeps_all() -> None:
    assert typical_p(Candidates(np.array([4.0, -3.0], np.float32)), 1.0).ids is None
