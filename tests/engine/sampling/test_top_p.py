from __future__ import annotations

import numpy as np
from hypothesis import given

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.top_p import top_p

from .oracle import kept, rows, shares, softmax


@given(rows, shares)
def test_the_smallest_sufficient_set_stays(row: np.ndarray, p: float) -> None:
    probability = softmax(row)
    found = kept(top_p(Candidates(row), p), row)
    least = probability[found].min()
    assert found[probability > least + 1e-6].all()
    if p < 1:
        assert probability[found].sum() >= p - 1e-5
        assert probability[found & (probability > least + 1e-6)].sum() < p + 1e-5
    else:
        assert np.array_equal(found, row > -np.inf)
    assert found[row.argmax()]


def test_the_token_that_crosses_the_share_stays() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    assert kept(top_p(Candidates(row), 0.6), row).tolist() == [True, True, False]
    assert kept(top_p(Candidates(row), 0.0), row).tolist() == [True, False, False]
