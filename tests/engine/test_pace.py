"""Pieces of prompts: as large as running streams can bear, and never so small that a prompt is not read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.pace import FIRST_PIECE, LEAST_SHARE, PIECE_SECONDS, UNIT, Pace


def read(pace: Pace, length: int, seconds: float, deeper: float, step: float, interval: int) -> list[tuple[int, float]]:
    """Read a prompt on a machine that takes `seconds` for a token, and `deeper` for each one before it; the pieces and
    their seconds."""
    pieces, start = [], 0
    while start < length:
        for _ in range(interval):
            pace.decoded(step)
        tokens = min(length - start, pace.piece(start))
        took = tokens * (seconds + deeper * (start + tokens / 2))
        start += tokens
        pace.read(tokens, start, took)
        pieces.append((tokens, took))
    return pieces


def test_the_first_piece_is_careful_and_the_next_ones_fit() -> None:
    pieces = read(Pace(512, 16), 8000, seconds=1e-3, deeper=1e-6, step=1e-3, interval=16)
    assert pieces[0][0] == FIRST_PIECE
    assert all(took < 1.4 * PIECE_SECONDS for _, took in pieces)
    assert all(took > 0.45 * PIECE_SECONDS for _, took in pieces[1:-1])
    sizes = [tokens for tokens, _ in pieces[1:-1]]
    assert sizes == sorted(sizes, reverse=True), "deeper in a prompt each token costs more"


def test_a_fast_machine_reads_whole_chunks() -> None:
    pieces = read(Pace(512, 16), 8000, seconds=1e-4, deeper=0, step=1e-3, interval=16)
    assert {tokens for tokens, _ in pieces[1:-1]} == {512}


def test_where_decoding_is_slow_a_prompt_gets_its_share_all_the_same() -> None:
    pieces = read(Pace(512, 16), 9000, seconds=5e-3, deeper=0, step=0.25, interval=16)
    reading = sum(took for _, took in pieces)
    assert reading / (reading + len(pieces) * 16 * 0.25) == pytest.approx(LEAST_SHARE, rel=0.1)


def test_a_piece_much_deeper_than_what_was_measured_is_careful_too() -> None:
    """The beginning of a long prompt was cached."""
    pace = Pace(512, 16)
    pace.read(100, 100, 0.01)
    assert pace.piece(0) == 512
    assert pace.piece(6000) == FIRST_PIECE


def test_what_tells_nothing_changes_nothing() -> None:
    pace = Pace(512, 16)
    pace.read(UNIT - 1, 300, 10.0)
    pace.read(512, 512, 0.0)
    assert pace.piece(0) == FIRST_PIECE


def test_a_prompt_that_is_to_be_read_at_once_is() -> None:
    pace = Pace(0, 16)
    pace.read(512, 512, 100.0)
    assert pace.piece(0) == 0


@given(
    st.integers(1, 4096),
    st.integers(0, 64),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 9000), st.floats(0, 1e4), st.floats(0, 100)), max_size=20),
    st.integers(0, 9000),
)
def test_a_piece_is_never_empty_and_never_too_large(
    most: int, interval: int, history: list[tuple[int, int, float, float]], start: int
) -> None:
    pace = Pace(most, interval)
    for tokens, end, seconds, step in history:
        pace.read(tokens, end, seconds)
        pace.decoded(step)
    assert min(most, UNIT) <= pace.piece(start) <= most
