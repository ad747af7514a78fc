"""Counting requests."""

from __future__ import annotations

from mlxcel.api.totals import RequestTotals
from mlxcel.engine.events import Finished, FinishReason, StopKind, Timings, Usage


def end(reason: FinishReason, completion: int, seconds: float) -> Finished:
    return Finished(reason, StopKind.NONE, Usage(10, completion), Timings(5.0, seconds / 2, seconds / 2))


def test_choices_are_one_request_with_one_prompt() -> None:
    totals = RequestTotals()
    totals.record([end(FinishReason.STOP, 3, 1.0), end(FinishReason.LENGTH, 4, 2.0)])
    assert totals == RequestTotals(requests=1, prompt_tokens=10, completion_tokens=7, seconds=2.0)
    totals.record([end(FinishReason.STOP, 1, 0.5)])
    assert totals == RequestTotals(requests=2, prompt_tokens=20, completion_tokens=8, seconds=2.5)


def test_a_failed_request_is_not_a_completed_one() -> None:
    totals = RequestTotals()
    totals.record([end(FinishReason.STOP, 3, 1.0), end(FinishReason.ERROR, 1, 1.0)])
    assert totals == RequestTotals()
