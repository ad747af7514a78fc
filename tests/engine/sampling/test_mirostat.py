from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.mirostat import Mirostat, mirostat

from .oracle import agree, kept, made, rows, softmax, voice

limits = st.floats(0.1, 12.0)


@given(rows, st.floats(0.3, 3.0), limits)
def test_version_2_keeps_what_surprises_little_enough(row: np.ndarray, temperature: float, limit: float) -> None:
    found = kept(mirostat(Candidates(row), 2, temperature, limit), row)
    with np.errstate(divide="ignore"):
        surprise = -np.log2(softmax(row, temperature))
    if surprise.min() > limit + 1e-4:
        assert np.array_equal(found, row == row.max())
    elif surprise.min() < limit - 1e-4:
        agree(found, -surprise, -limit, 1e-4)


def zipf_size(row: np.ndarray, temperature: float, limit: float) -> float:
    """Basu et al. 2021, equations 30 and after: how many of the vocabulary have that surprise on average."""
    logits = np.sort(row[row > -np.inf].astype(np.float64))[::-1][:100] / temperature
    ranks = np.arange(1, len(logits))
    t, b = np.log((ranks + 1) / ranks), logits[:-1] - logits[1:]
    s = (t * b).sum() / (t * t).sum()
    excess = s - 1
    return (excess * 2**limit / (1 - len(row) ** -excess)) ** (1 / s)


@given(rows, st.floats(0.3, 3.0), limits)
def test_version_1_keeps_as_many_as_a_zipf_distribution(row: np.ndarray, temperature: float, limit: float) -> None:
    assume((row > -np.inf).sum() >= 2)
    with np.errstate(all="ignore"):
        size = zipf_size(row, temperature, limit)
    assume(np.isfinite(size) and abs(size - round(size)) > 1e-4)
    count = min(max(int(size), 1), len(row))
    found = kept(mirostat(Candidates(row), 1, temperature, limit), row)
    expected = np.isin(np.arange(len(row)), np.argsort(-row, kind="stable")[:count]) & (row > -np.inf)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("row", [np.zeros(5, np.float32), np.zeros(1, np.float32)])
def test_version_1_keeps_all_where_all_are_equal(row: np.ndarray) -> None:
    assert mirostat(Candidates(row), 1, 1.0, 2.0).logits.shape == row.shape


def test_feedback() -> None:
    state = Mirostat(5.0, 0.1)
    assert state.value == 10.0
    state.observe(0.25)  # 2 bits, 3 too few
    assert state.value == pytest.approx(10.3)
    state.observe(2.0**-9)
    assert state.value == pytest.approx(9.9)


@pytest.mark.parametrize("version", [1, 2])
def test_it_stands_for_all_truncation(version: int) -> None:
    row = made(1, 200, 1.0, 0.0)
    plain, more = (
        voice(mirostat=version, **values)
        for values in ({}, {"top_k": 5, "min_p": 0.5, "typical_p": 0.5, "xtc_probability": 1.0, "dynatemp_range": 0.5})
    )
    assert [plain(row) for _ in range(30)] == [more(row) for _ in range(30)]


@pytest.mark.parametrize("version", [1, 2])
def test_a_sequence_comes_to_be_as_surprising_as_asked_for(version: int) -> None:
    """On rows that differ from step to step, in bits under the model's own distribution."""
    random = np.random.default_rng(5)
    means = []
    for target in (1.5, 4.0):
        speaks, surprises = voice(mirostat=version, mirostat_tau=target, mirostat_eta=0.2), []
        for _ in range(400):
            row = (-1.1 * np.log(np.arange(1, 400)) + random.normal(scale=0.3, size=399)).astype(np.float32)
            surprises.append(-np.log2(softmax(row)[speaks(row)]))
        means.append(np.mean(surprises[100:]))
    assert means[0] < 3.2 < means[1] < 5.5


def test_greedy_is_greedy() -> None:
    row = made(1, 50, 1.0, 0.0)
    speaks = voice(mirostat=2, temperature=0.0)
    assert [speaks(row) for _ in range(3)] == [row.argmax()] * 3
