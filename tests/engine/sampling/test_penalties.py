"""Repetition, frequency and presence penalties."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.edits import Edits
from mlxcel.engine.sampling.penalties import History, TokenCounts
from mlxcel.engine.sampling.rows_numpy import NumpyRows

from .oracle import voice

tokens = st.lists(st.integers(0, 7), max_size=30)


@given(
    tokens,
    tokens,
    st.sampled_from([1.0, 1.3, 0.8]),
    st.sampled_from([-1, 0, 1, 5, 64]),
    st.floats(-2, 2),
    st.floats(-2, 2),
)
def test_penalties_are_as_defined(
    prompt: list[int], answer: list[int], repetition: float, window: int, frequency: float, presence: float
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition,
        repetition_context_size=window,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )
    history = History(params, tuple(prompt))
    for token in answer:
        history.append(token)
    row = np.linspace(-4, 4, 8, dtype=np.float32)
    expected = row.astype(np.float64)
    seen = (prompt + answer)[-window:] if window > 0 else (prompt + answer) * (window == -1)
    for token in set(seen):
        expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
    for token, count in Counter(answer).items():
        expected[token] -= count * frequency + presence
    edits = Edits(row, NumpyRows())
    history.apply(edits)
    assert np.abs(row - expected).max() < 1e-4
    edits.undo()
    assert np.array_equal(row, np.linspace(-4, 4, 8, dtype=np.float32))


def test_repetition_sees_the_window_of_prompt_and_answer() -> None:
    speaks = voice((0, 1), temperature=0.0, repetition_penalty=2.0, repetition_context_size=2)
    row = np.array([3.0, 2.9, 2.0, -1.0], np.float32)
    assert speaks(row) == 2  # 3.0 and 2.9 are halved
    assert speaks(row) == 0  # the window is now (1, 2)
    assert speaks(np.array([-3.0, -0.9, -2.0, -1.0], np.float32)) == 1  # window (2, 0): negatives double


def test_a_window_larger_than_the_prompt_takes_all_of_it() -> None:
    prompt = tuple(range(40))
    row = np.zeros(50, np.float32)
    row[0], row[45] = 3.0, 2.0

    def first(prompt: tuple[int, ...], window: int) -> int:
        return voice(prompt, temperature=0.0, repetition_penalty=2.0, repetition_context_size=window)(row)

    assert first(prompt, 64) == 45
    assert first(prompt * 3, -1) == 45
    assert first(prompt, 0) == 0


def test_frequency_and_presence_count_generated_tokens_only() -> None:
    row = np.array([2.0, 1.0, 0.0], np.float32)
    frequency = voice((0, 0, 0), temperature=0.0, frequency_penalty=0.6)
    assert [frequency(row) for _ in range(4)] == [0, 0, 1, 0]
    presence = voice((0,), temperature=0.0, presence_penalty=1.5)
    assert [presence(row) for _ in range(3)] == [0, 1, 0]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30))))
def test_token_counts(changes: list[tuple[bool, int]]) -> None:
    counts, expected = TokenCounts(), dict[int, int]()
    for removed, token in changes:
        if not removed:
            counts.add(token)
            expected[token] = expected.get(token, 0) + 1
        elif token in expected:
            counts.remove(token)
            expected[token] -= 1
            if not expected[token]:
                del expected[token]
        assert dict(zip(counts.tokens.tolist(), counts.counts.tolist(), strict=True)) == expected
        assert len(counts) == len(expected)
