"""The slope of memory."""

from __future__ import annotations

import random

import pytest

from benchmarks.soak import slope


def test_a_line_is_its_own_slope() -> None:
    rate, bound = slope([(float(at), 100 + at * 7 / 3600) for at in range(0, 600, 2)])
    assert rate == pytest.approx(7)
    assert bound == pytest.approx(0, abs=1e-6)


def test_a_pause_between_samples_does_no_harm() -> None:
    times = [*range(0, 100, 2), *range(900, 1000, 2)]
    rate, bound = slope([(float(at), 100 + at / 360) for at in times])
    assert (rate, bound) == (pytest.approx(10), pytest.approx(0, abs=1e-6))


def test_noise_widens_the_bounds_and_steps_are_not_taken_for_growth() -> None:
    rng = random.Random(1)
    noisy = [(float(at), 100 + rng.choice((0, 30))) for at in range(0, 900, 2)]
    rate, bound = slope(noisy)
    assert rate - bound < 0 < rate + bound
    assert slope([(at, 100 + (size - 100) / 10) for at, size in noisy])[1] == pytest.approx(bound / 10)


def test_growth_shows_through_noise() -> None:
    rng = random.Random(1)
    rate, bound = slope([(float(at), 100 + at / 36 + rng.random()) for at in range(0, 900, 2)])
    assert rate - bound < 100 < rate + bound
    assert rate - bound > 50
