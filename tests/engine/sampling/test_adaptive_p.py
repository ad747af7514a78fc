from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from mlxcel.engine.sampling.adaptive_p import AdaptiveP, near
from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.weights import weights

from .oracle import rows, shares, softmax, voice


@given(rows, shares)
def test_logits_fall_with_the_distance_from_the_aim(row: np.ndarray, aim: float) -> None:
    weighed = weights(row, 1.0)
    found = near(Candidates(row), weighed, float(weighed.sum(dtype=np.float64)), aim)
    distance = np.abs(softmax(row) - aim) / 0.3
    expected = 5 - 10 * distance**2 / (1 + distance)
    live = weighed > 0
    assert np.abs(found.logits[live] - expected[live]).max() < 1e-4
    assert (found.logits[~live] == -np.inf).all()


def test_feedback_aims_past_the_target() -> None:
    state = AdaptiveP(0.5, 0.9)
    assert state.value == pytest.approx(0.5)
    state.observe(1.0)  # nine parts 0.5 to one part 1.0: the average is 0.55
    assert state.value == pytest.approx(0.45)
    for _ in range(100):
        state.observe(1.0)
    assert state.value == pytest.approx(0.0, abs=1e-4)
    for _ in range(100):
        state.observe(0.0)
    assert state.value == pytest.approx(1.0, abs=1e-4)


def test_tokens_near_the_target_are_preferred() -> None:
    row = np.log(np.array([0.85, 0.1, 0.05], np.float32))

    def share(**values: float) -> float:
        speaks = voice(**values)
        return float(np.mean([speaks(row) == 0 for _ in range(2000)]))

    assert share() > 0.8
    assert share(adaptive_target=0.1, adaptive_decay=0.0) < 0.2


def test_the_average_follows_the_target() -> None:
    row = np.log(np.array([0.6, 0.2, 0.1, 0.1], np.float32))

    def average(target: float) -> float:
        speaks = voice(adaptive_target=target)
        return float(np.mean([np.exp(row[speaks(row)]) for _ in range(1000)]))

    assert average(0.1) < 0.2 < average(0.3) < 0.3 < average(0.5) < 0.6


def test_a_negative_target_and_mirostat_switch_it_off() -> None:
    row = np.log(np.array([0.6, 0.4], np.float32))
    for values in ({}, {"mirostat": 2}):
        off, on = voice(adaptive_target=-0.1, **values), voice(adaptive_target=0.1 if values else -1.0, **values)
        assert [off(row) for _ in range(30)] == [on(row) for _ in range(30)]
