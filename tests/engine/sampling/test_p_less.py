from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.p_less import p_less

from .oracle import agree, kept, made, rows, softmax, voice

temperatures = st.floats(0.2, 5.0)


@given(rows, temperatures)
def test_tokens_as_likely_as_a_guess_is_right_stay(row: np.ndarray, temperature: float) -> None:
    probability = softmax(row, temperature)
    found = kept(p_less(Candidates(row), temperature), row)
    least = float((probability**2).sum())
    agree(found, probability, least, 1e-5 * least)
    assert found[row.argmax()]


@given(rows, temperatures, temperatures)
def test_heat_never_takes_a_token_away(row: np.ndarray, one: float, two: float) -> None:
    cold, hot = sorted((one, two))
    probability = softmax(row, cold)
    surely = probability > (probability**2).sum() * (1 + 1e-4)
    assert kept(p_less(Candidates(row), hot), row)[surely].all()


def test_it_goes_by_the_temperature_of_the_request() -> None:
    row = np.log(np.array([0.6, 0.25, 0.15], np.float32))  # the squares add up to 0.445; at temperature 3 to 0.353
    assert {voice(p_less=True, temperature=1.0, seed=seed)(row) for seed in range(50)} == {0}
    assert {voice(p_less=True, temperature=3.0, seed=seed)(row) for seed in range(50)} == {0}
    row = np.log(np.array([0.4, 0.35, 0.25], np.float32))  # 0.345
    assert {voice(p_less=True, temperature=1.0, seed=seed)(row) for seed in range(50)} == {0, 1}


def test_greedy_and_mirostat_skip_it() -> None:
    row = made(1, 50, 0.5, 0.0)
    assert voice(p_less=True, temperature=0.0)(row) == row.argmax()
    drawn = [[voice(p_less=p, mirostat=2, seed=seed)(row) for seed in range(20)] for p in (True, False)]
    assert drawn[0] == drawn[1]
