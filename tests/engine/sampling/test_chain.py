"""The order of the stages, and what holds for all of them together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Candidates, SamplingError
from mlxcel.engine.sampling.chain import Step, choose
from mlxcel.engine.sampling.min_p import min_p
from mlxcel.engine.sampling.p_less import p_less
from mlxcel.engine.sampling.top_k import top_k
from mlxcel.engine.sampling.top_n_sigma import top_n_sigma
from mlxcel.engine.sampling.top_p import top_p
from mlxcel.engine.sampling.typical_p import typical_p
from mlxcel.engine.sampling.xtc import exclude_top_choices

from .oracle import OFF, Voice, kept, made, rows, shares, softmax, voice


def support(row: np.ndarray, **values: Any) -> np.ndarray:
    """Tokens that the chain can give: those it gives for draws spread evenly, which find all but the rarest."""
    params = SamplingParams(**{**OFF, **values})
    exclude = params.xtc_probability == 1.0
    out = np.zeros(row.shape[0], bool)
    for uniform in np.arange(0.0005, 1.0, 0.001):
        out[choose(row, params, Step(float(uniform), exclude, 0.0))[0]] = True
    return out


@given(rows, shares, st.integers(0, 30), shares, shares, st.floats(0.0, 2.0), st.booleans())
@settings(max_examples=60)
def test_each_filter_sees_what_the_one_before_left(
    row: np.ndarray, typical: float, k: int, p: float, m: float, n: float, exclude: bool
) -> None:
    typical = max(typical, 0.05)
    expected = top_n_sigma(Candidates(row), n)
    expected = p_less(expected, 1.0)
    expected = typical_p(expected, typical)
    expected = top_k(expected, k)
    expected = min_p(top_p(expected, p), m)
    if exclude:
        expected = exclude_top_choices(expected, 0.1)
    found = support(
        row,
        top_n_sigma=n,
        p_less=True,
        typical_p=typical,
        top_k=max(k, 2) if k == 1 else k,
        top_p=p,
        min_p=m,
        xtc_probability=float(exclude),
    )
    if k == 1:
        return  # greedy, which is another path
    live = kept(expected, row)
    assert not (found & ~live).any()
    ids = np.arange(row.shape[0]) if expected.ids is None else expected.ids
    likely = ids[softmax(expected.logits) > 0.002]
    assert found[likely].all()


def test_draws_follow_the_distribution() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    speaks = voice(seed=7)
    counts = np.bincount([speaks(row) for _ in range(20000)], minlength=3) / 20000
    assert np.abs(counts - [0.5, 0.3, 0.2]).max() < 0.015


@given(rows, st.integers(0, 2**63))
@settings(max_examples=30)
def test_a_seed_repeats(row: np.ndarray, seed: int) -> None:
    one, two = Voice(SamplingParams(seed=seed)), Voice(SamplingParams(seed=seed))
    assert [one(row) for _ in range(8)] == [two(row) for _ in range(8)]


def test_without_a_seed_sequences_differ() -> None:
    row = np.zeros(50, np.float32)
    one, two = voice(seed=None), voice(seed=None)
    assert [one(row) for _ in range(16)] != [two(row) for _ in range(16)]


@pytest.mark.parametrize("values", [{"temperature": 0.0}, {"top_k": 1}])
def test_greedy_takes_the_best_whatever_else_is_set(values: dict[str, Any]) -> None:
    row = np.array([0.0, 2.0, 2.0, -1.0], np.float32)
    speaks = voice(**values, typical_p=0.1, xtc_probability=1.0, mirostat=2, adaptive_target=0.1, dynatemp_range=0.5)
    assert [speaks(row) for _ in range(3)] == [1, 1, 1]


def test_masked_tokens_are_never_drawn() -> None:
    row = np.full(50, -np.inf, np.float32)
    row[[3, 9]] = 0.0
    for values in (
        {},
        {"typical_p": 0.1, "top_p": 0.1, "min_p": 1.0, "min_keep": 10},
        {"top_n_sigma": 1.0},
        {"p_less": True},
        {"typical_p": 0.9},
        {"top_k": 40},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"dynatemp_range": 0.5},
        {"mirostat": 1},
        {"mirostat": 2},
        {"adaptive_target": 0.3},
        {"repetition_penalty": 1.3, "presence_penalty": 1.0, "dry_multiplier": 1.0},
    ):
        speaks = voice((3, 9, 3), **values)
        assert {speaks(row) for _ in range(100)} <= {3, 9}, values


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_rows_that_are_not_numbers_are_refused(bad: list[float]) -> None:
    with pytest.raises(SamplingError):
        voice()(np.array(bad, np.float32))


def test_a_chain_of_everything_still_speaks() -> None:
    row = made(4, 500, 2.0, 0.1)
    everything = SamplingParams(
        p_less=True,
        typical_p=0.9,
        top_n_sigma=2.0,
        xtc_probability=0.5,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        dry_multiplier=0.8,
        logit_bias=((1, 2.0),),
        ignore_eos=True,
        dynatemp_range=0.3,
        adaptive_target=0.3,
        seed=1,
    )
    one, two = Voice(everything, (1, 2, 3)), Voice(everything, (1, 2, 3))
    said = [one(row) for _ in range(50)]
    assert said == [two(row) for _ in range(50)]
    assert all(row[token] > -np.inf for token in said)
