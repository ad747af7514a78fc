from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.temperature import dynamic_temperature

from .oracle import entropy, rows, softmax, voice


@given(rows, st.floats(0.1, 2.0), st.floats(0.01, 3.0), st.floats(0.1, 4.0))
def test_it_follows_the_entropy(row: np.ndarray, temperature: float, spread: float, exponent: float) -> None:
    found = dynamic_temperature(Candidates(row), temperature, spread, exponent)
    live = int((row > -np.inf).sum())
    if live < 2:
        assert found == temperature
        return
    share = entropy(softmax(row)) / np.log(live)
    low, high = max(0.0, temperature - spread), temperature + spread
    assert abs(found - (low + (high - low) * share**exponent)) < 1e-3
    assert low - 1e-9 <= found <= high + 1e-9


def test_its_ends() -> None:
    equal, certain = Candidates(np.zeros(8, np.float32)), Candidates(np.array([0.0, -200.0], np.float32))
    assert dynamic_temperature(equal, 1.0, 0.5, 2.0) == 1.5
    assert dynamic_temperature(certain, 1.0, 0.5, 2.0) == 0.5
    assert dynamic_temperature(certain, 1.0, 2.0, 1.0) == 0.0
    assert dynamic_temperature(equal, 1.0, 0.0, 2.0) == 1.0


def test_a_temperature_that_falls_to_zero_takes_the_best() -> None:
    row = np.array([0.0, -200.0, -300.0], np.float32)
    assert {voice(dynatemp_range=5.0, seed=seed)(row) for seed in range(5)} == {0}


def test_temperature_sharpens_after_the_filters() -> None:
    row = np.log(np.array([0.6, 0.4], np.float32))
    speaks = voice(temperature=0.5)
    share = np.mean([speaks(row) == 0 for _ in range(20000)])
    assert abs(share - 0.36 / (0.36 + 0.16)) < 0.015
    # At temperature 0.5 the second would have 0.31 and be out.
    assert {voice(temperature=0.5, min_p=0.5, seed=seed)(row) for seed in range(50)} == {0, 1}


def test_a_tiny_temperature_is_nearly_greedy() -> None:
    row = np.array([0.0, 1e30, -1e30, 3.0], np.float32)
    assert voice(temperature=1e-300)(row) == 1
