from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.loops import DEFAULT_RULE, LoopDetector, LoopRule, server_rule


def loops(tokens: list[int], rule: LoopRule) -> bool:
    """By definition: whether the text ends in `count` copies of the same tokens."""
    if rule.max_size == 0 or rule.count < 2:
        return False
    for size in range(min(max(rule.min_size, 1), rule.max_size), rule.max_size + 1):
        if len(tokens) >= size * rule.count:
            tail = tokens[len(tokens) - size * rule.count :]
            if tail == tail[:size] * rule.count:
                return True
    return False


texts = st.one_of(
    st.lists(st.integers(0, 2), max_size=60),
    st.tuples(
        st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), min_size=1, max_size=6), st.integers(1, 9)
    ).map(lambda parts: parts[0] + parts[1] * parts[2]),
)


@given(texts, st.integers(0, 7), st.integers(0, 7), st.integers(0, 5))
def test_loops_are_found_as_defined(text: list[int], least: int, most: int, count: int) -> None:
    rule = LoopRule(least, most, count)
    detector = LoopDetector(rule, 100)
    for length in range(1, len(text) + 1):
        assert detector.push(text[length - 1]) == loops(text[:length], rule)


@pytest.mark.parametrize("pattern", [[5], [5, 6], [5, 5, 6], list(range(20))])
def test_it_ends_exactly_when_the_count_is_full(pattern: list[int]) -> None:
    detector = LoopDetector(DEFAULT_RULE, 10_000)
    found = [detector.push(token) for token in [98, 99, *pattern * 6]]
    assert found.index(True) == 2 + 4 * len(pattern) - 1


def test_a_longer_pattern_is_none() -> None:
    detector = LoopDetector(DEFAULT_RULE, 10_000)
    assert not any(detector.push(token) for token in list(range(21)) * 10)


@pytest.mark.parametrize(
    "rule", [LoopRule(1, 10**30, 3), LoopRule(10**30, 10**31, 3), LoopRule(10**30, 2, 2), LoopRule(1, 20, 10**30)]
)
def test_sizes_and_counts_beyond_any_text_cost_nothing(rule: LoopRule) -> None:
    detector = LoopDetector(rule, 12)
    assert detector.push(1) is False


@pytest.mark.parametrize("budget", [2**40, 2**80])
def test_a_budget_beyond_any_text_costs_nothing(budget: int) -> None:
    # With context shift a request's own limit is all that bounds its text.
    detector = LoopDetector(LoopRule(1, 10**30, 3), budget)
    found = [detector.push(token) for token in [*range(7), *list(range(100)) * 3]]
    assert found.index(True) == 7 + 3 * 100 - 1


def test_off() -> None:
    assert not LoopRule(1, 0, 4).active
    assert not LoopRule(1, 20, 1).active
    assert LoopRule(0, 1, 2).active


@pytest.mark.parametrize(
    ("variable", "plain", "gemma"),
    [
        (None, None, DEFAULT_RULE),
        ("", None, DEFAULT_RULE),
        *((word, None, None) for word in ("off", "0", "none", "FALSE", "disabled")),
        *((word, DEFAULT_RULE, DEFAULT_RULE) for word in ("on", "default", "true", " Enabled ")),
        ("2,30,5", LoopRule(2, 30, 5), LoopRule(2, 30, 5)),
        ("2:30:5", LoopRule(2, 30, 5), LoopRule(2, 30, 5)),
        ("1, 0, 4", None, None),
        ("1,20,1", None, None),
    ],
)
def test_the_policy_of_a_server(variable: str | None, plain: LoopRule | None, gemma: LoopRule | None) -> None:
    assert server_rule(variable, "llama") == plain
    for family in ("gemma4", "gemma4_text"):
        assert server_rule(variable, family) == gemma
    assert server_rule(variable, "gemma3") == plain


@pytest.mark.parametrize("variable", ["maybe", "1,2", "1,2,3,4", "-1,2,3"])
def test_what_cannot_be_read_is_ignored_with_a_warning(variable: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert server_rule(variable, "llama") is None
        assert server_rule(variable, "gemma4") == DEFAULT_RULE
    assert "MLXCEL_LOOP_DETECTION" in caplog.text
