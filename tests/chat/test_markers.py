"""Markers in a text that arrives in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.markers import Markers

LETTERS = st.text(alphabet="<ab>", max_size=14)
SETS = st.lists(st.text(alphabet="<ab>", min_size=1, max_size=4), max_size=4)


def expected(text: str, markers: list[str]) -> list[tuple[str, str]]:
    """By definition: the earliest, and of several at one place the longest."""
    found, start, position = [], 0, 0
    while position < len(text):
        here = max((marker for marker in markers if text.startswith(marker, position)), key=len, default="")
        if here:
            found.append((text[start:position], here))
            start = position = position + len(here)
        else:
            position += 1
    return [*found, (text[start:], "")]


@given(LETTERS, SETS, st.lists(st.integers(0, 14), max_size=5))
def test_what_is_found_does_not_depend_on_the_cut(text: str, markers: list[str], borders: list[int]) -> None:
    searched = Markers(markers)
    edges = [0, *sorted(min(border, len(text)) for border in borders), len(text)]
    found, before, held = [], "", ""
    for index in range(1, len(edges)):
        held += text[edges[index - 1] : edges[index]]
        marker: str | None = ""
        while marker is not None:
            position, marker = searched.find(held, final=index == len(edges) - 1)
            before, held = before + held[:position], held[position + len(marker or "") :]
            if marker is not None:
                found.append((before, marker))
                before = ""
    assert [*found, (before, "")] == expected(text, markers)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("plain", (5, None)),
        ("a <thi", (2, None)),
        ("a <b <think>", (5, "<think>")),
        ("<x", (0, "<x")),
        ("<x<", (0, "<x")),
        ("<t", (0, None)),
    ],
)
def test_text_is_held_back_only_while_it_can_become_a_marker(text: str, found: tuple[int, str | None]) -> None:
    assert Markers(["<think>", "<x"]).find(text, final=False) == found


def test_a_longer_marker_is_waited_for() -> None:
    markers = Markers(["<|channel>", "<|channel>thought"])
    assert markers.find("<|channel>tho", final=False) == (0, None)
    assert markers.find("<|channel>tho", final=True) == (0, "<|channel>")
    assert markers.find("<|channel>tha", final=False) == (0, "<|channel>")
    assert markers.find("<|channel>thought", final=False) == (0, "<|channel>thought")
