"""The sampling chain against plain definitions written out in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Candidates, SamplingError
from mlxcel.engine.sampling.chain import Sampler
from mlxcel.engine.sampling.filters import min_p, top_k, top_p
from mlxcel.engine.sampling.logprobs import token_logprob

from ..scripted import ByteTokenizer

rows = st.integers(0, 2**32 - 1).map(
    lambda seed: np.random.default_rng(seed).normal(scale=3, size=50).astype(np.float32)
)
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def softmax(row: np.ndarray) -> np.ndarray:
    weights = np.exp(row.astype(np.float64) - row.max())
    return weights / weights.sum()


def survivors(candidates: Candidates, row: np.ndarray) -> set[int]:
    if candidates.ids is None:
        return set(range(row.shape[0]))
    assert np.array_equal(row[candidates.ids], candidates.logits), "a token keeps its own logit"
    return set(candidates.ids.tolist())


@given(rows, st.integers(-1, 60))
def test_top_k_keeps_the_largest(row: np.ndarray, k: int) -> None:
    kept = survivors(top_k(Candidates(row), k), row)
    size = len(row) if k <= 0 else min(k, len(row))
    assert kept == set(np.argsort(-row)[:size].tolist())


@given(rows, st.floats(0.0, 1.0))
def test_top_p_keeps_the_smallest_sufficient_set(row: np.ndarray, p: float) -> None:
    order = np.argsort(-row)
    cumulative = np.cumsum(softmax(row)[order])
    size = len(row) if p >= 1 else int((cumulative < p).sum()) + 1
    assert survivors(top_p(Candidates(row), p), row) == set(order[:size].tolist())


@given(rows, st.floats(0.0, 1.0))
def test_min_p_keeps_what_is_likely_enough(row: np.ndarray, p: float) -> None:
    probability = softmax(row)
    kept = survivors(min_p(Candidates(row), p), row)
    clear = np.abs(probability / probability.max() - p) > 1e-5  # away from rounding at the threshold
    wanted = probability >= p * probability.max()
    assert all((index in kept) == wanted[index] for index in np.flatnonzero(clear))
    assert int(row.argmax()) in kept


@given(rows, st.integers(0, 60), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_filters_in_a_row_equal_the_definition(row: np.ndarray, k: int, p: float, m: float) -> None:
    candidates = min_p(top_p(top_k(Candidates(row), k), p), m)
    order = np.argsort(-row)[: k if 0 < k < len(row) else len(row)]
    probability = softmax(row[order])
    if p < 1:
        order = order[: int((np.cumsum(probability) < p).sum()) + 1]
    expected = {int(i) for i in order if softmax(row[order])[list(order).index(i)] >= m * softmax(row[order]).max()}
    kept = survivors(candidates, row)
    assert int(row.argmax()) in kept
    assert len(kept ^ expected) <= 1, "at most the one on the min-p threshold, by rounding"


def test_draws_follow_the_distribution() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)
    sampler = Sampler(params, ())
    counts = np.bincount([sampler.sample(row) for _ in range(20000)], minlength=3) / 20000
    assert np.abs(counts - [0.5, 0.3, 0.2]).max() < 0.015


def test_temperature_sharpens_after_the_filters() -> None:
    row = np.log(np.array([0.6, 0.4], np.float32))
    sampler = Sampler(SamplingParams(temperature=0.5, top_k=0, top_p=1.0, min_p=0.0, seed=1), ())
    share = np.mean([sampler.sample(row) == 0 for _ in range(20000)])
    assert abs(share - 0.36 / (0.36 + 0.16)) < 0.015


@given(rows, st.integers(0, 2**63))
@settings(max_examples=30)
def test_a_seed_repeats(row: np.ndarray, seed: int) -> None:
    params = SamplingParams(seed=seed)
    one, two = Sampler(params, ()), Sampler(params, ())
    assert [one.sample(row) for _ in range(8)] == [two.sample(row) for _ in range(8)]


def test_without_a_seed_sequences_differ() -> None:
    row = np.zeros(50, np.float32)
    one, two = (Sampler(OFF, ()) for _ in range(2))
    assert [one.sample(row) for _ in range(16)] != [two.sample(row) for _ in range(16)]


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(top_k=1, seed=3)])
def test_greedy_takes_the_best(params: SamplingParams) -> None:
    row = np.array([0.0, 2.0, 2.0, -1.0], np.float32)
    assert Sampler(params, ()).sample(row) == 1


def test_a_tiny_temperature_is_nearly_greedy() -> None:
    row = np.array([0.0, 1e30, -1e30, 3.0], np.float32)
    assert Sampler(SamplingParams(temperature=1e-300, top_k=0), ()).sample(row) == 1


def test_top_k_of_the_vocabulary_size_is_top_k_off() -> None:
    row = np.random.default_rng(1).normal(size=64).astype(np.float32)
    a = Sampler(SamplingParams(top_k=64, seed=5), ())
    b = Sampler(SamplingParams(top_k=0, seed=5), ())
    assert [a.sample(row) for _ in range(20)] == [b.sample(row) for _ in range(20)]


def test_masked_tokens_are_never_drawn() -> None:
    row = np.full(50, -np.inf, np.float32)
    row[[3, 9]] = 0.0
    sampler = Sampler(OFF, ())
    assert {sampler.sample(row) for _ in range(100)} == {3, 9}


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [-np.inf, -np.inf], [np.inf, 0.0]])
def test_rows_that_are_not_numbers_are_refused(bad: list[float]) -> None:
    with pytest.raises(SamplingError):
        Sampler(SamplingParams(), ()).sample(np.array(bad, np.float32))


def test_the_row_is_left_as_it_was() -> None:
    row = np.random.default_rng(1).normal(size=64).astype(np.float32)
    before = row.copy()
    Sampler(SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, seed=1), (1, 2, 3)).sample(row)
    assert np.array_equal(row, before)


def test_repetition_penalty_sees_the_window_of_prompt_and_answer() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, repetition_context_size=2)
    sampler = Sampler(params, (0, 1))
    row = np.array([3.0, 2.9, 2.0, -1.0], np.float32)
    assert sampler.sample(row) == 2  # 3.0 and 2.9 are halved
    assert sampler.sample(row) == 0  # the window is now (1, 2)
    assert sampler.sample(np.array([-3.0, -0.9, -2.0, -1.0], np.float32)) == 1  # window (2, 0): negatives double


def test_a_window_larger_than_the_prompt_takes_all_of_it() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, repetition_context_size=64)
    prompt = tuple(range(40))
    row = np.zeros(50, np.float32)
    row[0], row[45] = 3.0, 2.0
    assert Sampler(params, prompt).sample(row) == 45
    whole = SamplingParams(temperature=0.0, repetition_penalty=2.0, repetition_context_size=-1)
    assert Sampler(whole, prompt * 3).sample(row) == 45
    off = SamplingParams(temperature=0.0, repetition_penalty=2.0, repetition_context_size=0)
    assert Sampler(off, prompt).sample(row) == 0


def test_frequency_and_presence_count_generated_tokens_only() -> None:
    row = np.array([2.0, 1.0, 0.0], np.float32)
    frequency = Sampler(SamplingParams(temperature=0.0, frequency_penalty=0.6), (0, 0, 0))
    assert [frequency.sample(row) for _ in range(4)] == [0, 0, 1, 0]
    presence = Sampler(SamplingParams(temperature=0.0, presence_penalty=1.5), (0,))
    assert [presence.sample(row) for _ in range(3)] == [0, 1, 0]


@given(rows, st.integers(0, 20))
def test_logprobs_are_the_models_own(row: np.ndarray, alternatives: int) -> None:
    entry = token_logprob(row, 7, alternatives, ByteTokenizer())
    wanted = np.log(softmax(row))
    assert abs(entry.chosen.logprob - wanted[7]) < 1e-4
    assert [choice.token_id for choice in entry.top] == np.argsort(-row, kind="stable")[:alternatives].tolist()
    assert all(abs(choice.logprob - wanted[choice.token_id]) < 1e-4 for choice in entry.top)
