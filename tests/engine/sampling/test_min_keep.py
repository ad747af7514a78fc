from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.chain import Step, choose
from mlxcel.engine.sampling.min_keep import at_least
from mlxcel.engine.sampling.min_p import min_p
from mlxcel.engine.sampling.top_p import top_p
from mlxcel.engine.sampling.typical_p import typical_p
from mlxcel.engine.sampling.xtc import exclude_top_choices

from .oracle import OFF, entropy, kept, rows, shares, softmax


@pytest.mark.parametrize("stage", [top_p, min_p])
@given(row=rows, share=shares, count=st.integers(0, 70))
def test_the_most_likely_ones_fill_up(
    stage: Callable[[Candidates, float], Candidates], row: np.ndarray, share: float, count: int
) -> None:
    before = Candidates(row)
    found, alone = kept(at_least(count, stage(before, share), before), row), kept(stage(before, share), row)
    finite = row > -np.inf
    assert found.sum() == max(alone.sum(), min(count, finite.sum()))
    assert found[alone].all()
    assert not (found & ~finite).any()
    if not found[finite].all():
        assert row[found].min() >= row[finite & ~found].max(), "the most likely ones"


@given(row=rows, p=shares, count=st.integers(0, 70))
def test_typical_ones_fill_up_by_how_typical_they_are(row: np.ndarray, p: float, count: int) -> None:
    if p == 1.0:
        return
    found, alone = kept(typical_p(Candidates(row), p, count), row), kept(typical_p(Candidates(row), p), row)
    finite = row > -np.inf
    assert found.sum() == max(alone.sum(), min(count, finite.sum()))
    assert found[alone].all()
    if not found[finite].all():
        probability = softmax(row)
        with np.errstate(divide="ignore"):
            distance = np.abs(-np.log(probability) - entropy(probability))
        assert distance[found].max() <= distance[finite & ~found].min() + 1e-4


@pytest.mark.parametrize(("count", "left"), [(0, {2, 3}), (2, {2, 3}), (3, {0, 1, 2, 3}), (9, {0, 1, 2, 3})])
def test_xtc_takes_nothing_away_when_too_few_would_be_left(count: int, left: set[int]) -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1, 0.0], np.float32) + np.float32(1e-38))
    row[4] = -np.inf
    out = kept(exclude_top_choices(Candidates(row), 0.15, count), row)
    assert set(np.flatnonzero(out)) == left


@pytest.mark.parametrize("stage", [{"top_p": 0.0}, {"min_p": 1.0}, {"typical_p": 0.01}, {"top_p": 0.0, "min_p": 1.0}])
def test_the_chain_draws_from_so_many(stage: dict[str, float]) -> None:
    row = np.linspace(2.0, 0.0, 30, dtype=np.float32)
    for count in (0, 1, 2, 5, 100):
        pick = partial(choose, row, SamplingParams(**{**OFF, **stage, "min_keep": count}))  # type: ignore[arg-type]
        drawn = {pick(Step(float(u), False, 0.0))[0] for u in np.arange(0.0005, 1.0, 0.001)}
        assert len(drawn) == min(max(1, count), 30)
