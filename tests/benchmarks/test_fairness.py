"""The verdict on how a long prompt treats the others."""

from __future__ import annotations

import pytest

from benchmarks.client import Stream
from benchmarks.fairness import gaps_between, judge

LONG = Stream(10.0, (14.0, 14.1), 6000, 2)
ALONE = [Stream(0.0, (2.0, 2.1), 6000, 2), Stream(3.0, (3.2, 3.3), 20, 2)]


def running(pause: float) -> Stream:
    """A token every 0.1 s, and one pause while the long prompt is read."""
    arrivals = [8.0 + 0.1 * i for i in range(40)]
    return Stream(7.0, (*arrivals, *(arrivals[-1] + pause + 0.1 * i for i in range(40))), 30, 80)


def test_gaps_of_a_time_are_those_that_touch_it() -> None:
    stream = Stream(0.0, (1.0, 2.0, 4.0, 7.0), 1, 4)
    assert gaps_between([stream], 2.5, 3.5) == [2.0]
    assert gaps_between([stream], 1.5, 4.5) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("pause", "pieces", "short_at", "passed"),
    [
        (0.4, 10, 14.5, True),
        (0.6, 10, 14.5, False),  # a stream waits for too long
        (0.4, 1, 14.5, False),  # the long prompt does
        (0.4, 10, 40.0, False),  # the short one does
    ],
)
def test_each_promise_counts(pause: float, pieces: int, short_at: float, passed: bool) -> None:
    short = Stream(10.1, (short_at, short_at + 0.1), 20, 2)
    figures = judge([running(pause), running(0.1)], LONG, short, ALONE, pieces, most_gap=0.5)
    assert figures["passed"] is passed
    assert figures["gap_longest"] == pytest.approx(pause)
    assert figures["gap_median"] == pytest.approx(0.1)
    assert figures["bound"] == pytest.approx(pieces * (16 * 0.1 + pause - 0.1))
    assert figures["long_first_token"] == pytest.approx(4.0)
    assert figures["long_first_token_alone"] == pytest.approx(2.0)
