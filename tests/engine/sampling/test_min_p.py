from __future__ import annotations

import numpy as np
from hypothesis import given

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.min_p import min_p

from .oracle import agree, kept, rows, shares, softmax


@given(rows, shares)
def test_what_is_likely_enough_stays(row: np.ndarray, p: float) -> None:
    probability = softmax(row)
    relative = probability / probability.max()
    found = kept(min_p(Candidates(row), p), row)
    agree(found[row > -np.inf], relative[row > -np.inf], p, 1e-5 * p)
    assert found[row.argmax()]
