"""The size estimate that memory guards rest on."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.limits import Budget, Limits

words = st.text("abc äß", max_size=20)  # nothing that is written with an escape
values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**20), 10**20) | words,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_at_least_as_long_as_the_text(value: Any) -> None:
    assert Budget(Limits()).text_size(value) >= len(str(value))


def test_shared_containers_count_each_time_but_are_walked_once() -> None:
    value: list[Any] = []
    for _ in range(200):
        value = [value, value]
    assert Budget(Limits()).text_size(value) > 2**200


def test_input_widens_the_limits_and_is_walked_once() -> None:
    budget = Budget(Limits(text=10))
    given_list = ["a" * 100]
    budget.give({"messages": given_list})
    assert budget.is_given(given_list)
    assert not budget.is_given([])
    before = budget.text_size(given_list)
    budget.check_size(100)
    given_list.append("b" * 100)
    assert budget.text_size(given_list) == before
