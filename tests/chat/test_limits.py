"""The size estimate that memory guards rest on."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.limits import text_size

words = st.text("abc äß", max_size=20)  # nothing that is written with an escape
values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**20), 10**20) | words,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_at_least_as_long_as_the_text(value: Any) -> None:
    assert text_size(value) >= len(str(value))


def test_shared_containers_count_each_time_but_are_walked_once() -> None:
    value: list[Any] = []
    for _ in range(200):
        value = [value, value]
    assert text_size(value) > 2**200
