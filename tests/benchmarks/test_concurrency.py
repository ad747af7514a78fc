"""When a difference between two greedy runs counts as a near tie."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.concurrency import compare, first_difference


def run(text: str, gap: float = 1.0) -> list[dict[str, Any]]:
    """One token per character; the two best alternatives are `gap` apart."""
    return [
        {
            "token": letter,
            "bytes": list(letter.encode()),
            "top_logprobs": [{"logprob": -1.0}, {"logprob": -1.0 - gap}],
        }
        for letter in text
    ]


@pytest.mark.parametrize(
    ("alone", "together", "position"),
    [("abc", "abc", None), ("abc", "axc", 1), ("abc", "ab", 2), ("ab", "abc", 2), ("", "", None), ("", "a", 0)],
)
def test_first_difference(alone: str, together: str, position: int | None) -> None:
    assert first_difference(run(alone), run(together)) == position


@pytest.mark.parametrize(("gap", "passed"), [(0.0, True), (5e-4, True), (2e-3, False)])
@pytest.mark.parametrize("together", ["axc", "a", "abcd"])
def test_only_near_ties_may_differ(together: str, gap: float, passed: bool) -> None:
    report = compare("?", run("abc", gap), run(together, gap))
    assert not report["same"]
    assert report["passed"] is passed
    assert report["gap"] == pytest.approx(gap)


def test_equal_runs_pass() -> None:
    assert compare("?", run("abc"), run("abc")) == {"question": "?", "tokens": 3, "same": True, "passed": True}
