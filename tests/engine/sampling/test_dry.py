from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.request import DRY_BREAKERS, SamplingParams
from mlxcel.engine.sampling.dry import MAX_PENALTY, Dry
from mlxcel.engine.sampling.edits import Edits
from mlxcel.engine.sampling.rows_numpy import NumpyRows

from ..scripted import ByteTokenizer
from .oracle import voice


class Pieces(ByteTokenizer):
    """A few tokens of no, one and several bytes."""

    texts = (b"", b"a", b"b", b"ab", b"ba", b"\n", b"a\nb")

    def token_bytes(self, token_id: int) -> bytes:
        return self.texts[token_id]


def repeats(text: list[int], window: int, allowed: int, breakers: tuple[int | str, ...]) -> dict[int, int]:
    """By definition: for each token that would go on with an earlier run, the length of the longest such run."""
    last_break = -1  # position of the token with which the last breaker ends
    raw, ends = b"", []
    for token in text:
        raw += Pieces.texts[token]
        ends.append(len(raw))
    for breaker in breakers:
        if isinstance(breaker, int):
            last_break = max([last_break, *(i for i, token in enumerate(text) if token == breaker)])
        elif (at := raw.rfind(breaker.encode())) >= 0:
            end = at + len(breaker.encode())
            last_break = max(last_break, next(i for i, reached in enumerate(ends) if reached >= end))
    n = len(text)
    start = max(0, n - window) if window > 0 else 0
    found: dict[int, int] = {}
    for i in range(start, n - 1):
        m = 0
        while i - m >= start and n - 1 - m > last_break and text[i - m] == text[n - 1 - m]:
            m += 1
        if m >= max(allowed, 1):
            found[text[i + 1]] = max(m, found.get(text[i + 1], 0))
    return found


texts = st.one_of(
    st.lists(st.integers(0, 6), max_size=40),
    st.lists(st.integers(1, 2), max_size=40),
    st.tuples(st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 8)).map(lambda x: x[0] * x[1]),
)
breaker_sets = st.sampled_from(
    [(), ("\n",), (5,), (2, "\n"), ("ab",), ("b\n", "aa"), ("bab", 6), ("\n", "bbab"), DRY_BREAKERS]
)


@given(texts, texts, st.sampled_from([0, 0, 1, 2, 5, 30]), st.integers(0, 4), breaker_sets)
def test_runs_are_found_as_defined(
    prompt: list[int], answer: list[int], window: int, allowed: int, breakers: tuple[int | str, ...]
) -> None:
    params = SamplingParams(
        dry_multiplier=0.8,
        dry_base=1.5,
        dry_allowed_length=allowed,
        dry_penalty_last_n=window,
        dry_sequence_breakers=breakers,
    )
    state = Dry(params, tuple(prompt), Pieces())
    for length in range(len(answer) + 1):
        if length:
            state.append(answer[length - 1])
        expected = repeats(prompt + answer[:length], window, allowed, breakers)
        assert state.repeats() == expected
    row = np.zeros(7, np.float32)
    edits = Edits(row, NumpyRows())
    state.apply(edits)
    wanted = np.zeros(7)
    for token, m in expected.items():
        wanted[token] = -0.8 * 1.5 ** (m - allowed)
    assert np.allclose(row, np.maximum(wanted, -MAX_PENALTY), rtol=1e-5)
    edits.undo()
    assert not row.any()


def speaks(prompt: str, **values: Any) -> Any:
    return voice(tuple(prompt.encode()), temperature=0.0, dry_multiplier=5.0, **values)


def favourite(letter: str, second: str) -> np.ndarray:
    row = np.zeros(258, np.float32)
    row[ord(letter)], row[ord(second)] = 2.0, 1.0
    return row


def test_greedy_requests_see_it_from_the_allowed_length_on() -> None:
    assert speaks("xyz xy")(favourite("z", "q")) == ord("q")
    assert speaks("xyz y")(favourite("z", "q")) == ord("z")  # a run of one
    assert speaks("xyz y", dry_allowed_length=1)(favourite("z", "q")) == ord("q")
    assert speaks("xyz xy", dry_allowed_length=3)(favourite("z", "q")) == ord("z")


def test_runs_do_not_cross_the_usual_breakers_but_others_only_on_request() -> None:
    assert speaks("a:bc a:b")(favourite("c", "q")) == ord("c")  # the run since the colon has one token
    assert speaks("a:bc a:b", dry_sequence_breakers=())(favourite("c", "q")) == ord("q")
    assert speaks("a-bc a-b")(favourite("c", "q")) == ord("q")
    assert speaks("a-bc a-b", dry_sequence_breakers=("-",))(favourite("c", "q")) == ord("c")
    assert speaks("a-bc a-b", dry_sequence_breakers=(ord("-"),))(favourite("c", "q")) == ord("c")


def test_the_window_of_zero_is_everything() -> None:
    text = "xyz" + "." * 300 + "xy"
    assert speaks(text)(favourite("z", "q")) == ord("q")
    assert speaks(text, dry_penalty_last_n=-1)(favourite("z", "q")) == ord("q")
    assert speaks(text, dry_penalty_last_n=100)(favourite("z", "q")) == ord("z")


def test_its_own_words_count_too() -> None:
    sequence = speaks("", dry_allowed_length=2)
    said = [sequence(favourite("a", "b")) for _ in range(4)]
    assert bytes(said) == b"aaab"  # after "aa", a third was a run of one; the fourth would go on with one of two


def test_a_breaker_breaks_once_whatever_others_there_are() -> None:
    state = Dry(SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=("\n", "x" * 9)), (1, 2, 1), Pieces())
    for token in (5, 1, 2):
        state.append(token)
    assert state.repeats() == {1: 2}


@pytest.mark.parametrize(("base", "length"), [(1e4, 3000), (1.75, 3000)])
def test_long_runs_stay_finite(base: float, length: int) -> None:
    row = np.zeros(258, np.float32)
    row[5] = 1e30
    sequence = voice((7,) * length, temperature=0.0, dry_multiplier=1.0, dry_base=base)
    assert sequence(row) == 5
    state = Dry(SamplingParams(dry_multiplier=1.0, dry_base=base), (7,) * length, ByteTokenizer())
    edits = Edits(row, NumpyRows())
    state.apply(edits)
    assert np.isfinite(row).all()
    assert row[7] == -np.float32(MAX_PENALTY)


def test_a_multiplier_of_zero_is_off() -> None:
    state = Dry(SamplingParams(), (1, 2, 1, 2), ByteTokenizer())
    assert not state.enabled
