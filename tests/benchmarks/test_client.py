"""The figures the benchmarks report."""

from __future__ import annotations

import itertools
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.client import Stream, medians, percentile, prompt_text, ratios, summarize


def test_summary_of_one_stream() -> None:
    stream = Stream(sent=10.0, arrivals=(12.0, 12.5, 13.5), prompt_tokens=100, completion_tokens=4)
    assert summarize([stream]) == pytest.approx(
        {
            "ttft_ms": 2000,
            "prefill_tokens_per_s": 50,
            "decode_tokens_per_s": 2,
            "aggregate_tokens_per_s": 4 / 3.5,
            "gap_p50_ms": 750,
            "gap_p95_ms": 975,
            "gap_max_ms": 1000,
            "prompt_tokens": 100,
            "completion_tokens": 4,
        }
    )


def test_summary_of_streams_together_spans_all_of_them() -> None:
    streams = [Stream(0.0, (1.0, 2.0), 30, 2), Stream(0.5, (3.0, 5.0), 30, 5)]
    figures = summarize(streams)
    assert figures["prefill_tokens_per_s"] == pytest.approx(60 / 3)
    assert figures["aggregate_tokens_per_s"] == pytest.approx(7 / 5)
    assert figures["ttft_ms"] == pytest.approx(1750)


def test_an_answer_of_one_token() -> None:
    figures = summarize([Stream(0.0, (1.0,), 8, 1)])
    assert figures["decode_tokens_per_s"] == figures["gap_p50_ms"] == figures["gap_max_ms"] == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=30), st.floats(0, 100), st.floats(0, 100))
def test_percentiles_are_ordered_and_bounded(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    bounds = [min(values), percentile(values, low), percentile(values, high), max(values)]
    assert all(left <= right * (1 + 1e-12) for left, right in itertools.pairwise(bounds))
    assert percentile(values, 50) == pytest.approx(statistics.median(values))


def test_medians_and_ratios() -> None:
    middle = medians([{"a": 1, "b": 0}, {"a": 5, "b": 0}, {"a": 2, "b": 9}])
    assert middle == {"a": 2, "b": 0}
    assert ratios({"a": 1, "b": 3}, middle) == {"a": 0.5}


def test_prompts_have_heads_of_their_own() -> None:
    first, second = prompt_text("Story 1", 100), prompt_text("Story 2", 100)
    assert first != second
    assert first.split(": ")[1] == second.split(": ")[1]
    assert len(first.split(": ")[1].split()) == 100
