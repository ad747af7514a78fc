"""Bytes to text to stop strings: nothing depends on where the tokens' borders are."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.events import TextPiece, TokenChoice, TokenLogprob
from mlxcel.engine.text import StopMatcher, TextState

short = st.text(alphabet="ab", max_size=12)
stops = st.lists(st.text(alphabet="ab", max_size=4), max_size=4)


def cut(text: str, borders: list[int]) -> list[str]:
    edges = [0, *sorted({min(b, len(text)) for b in borders}), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def expected(text: str, stop_list: list[str]) -> tuple[str, str | None]:
    """By definition: the earliest occurrence, ties by list order."""
    found = [(text.find(stop), index) for index, stop in enumerate(stop_list) if stop and stop in text]
    if not found:
        return text, None
    position, index = min(found)
    return text[:position], stop_list[index]


@given(short, stops, st.lists(st.integers(0, 12), max_size=12))
def test_stop_outcome_does_not_depend_on_the_cut(text: str, stop_list: list[str], borders: list[int]) -> None:
    matcher = StopMatcher(stop_list)
    shown = ""
    for piece in cut(text, borders):
        shown += matcher.feed(piece)
        if matcher.matched is not None:
            break
    else:
        shown += matcher.flush()
    assert (shown, matcher.matched) == expected(text, stop_list)


def test_text_that_can_no_longer_match_is_released_at_once() -> None:
    matcher = StopMatcher(["abc"])
    assert matcher.feed("xab") == "x"
    assert matcher.feed("x") == "abx"
    assert matcher.feed("ab") == ""
    assert matcher.flush() == "ab"


def test_a_stop_string_is_found_across_pieces_and_left_out() -> None:
    matcher = StopMatcher(["END"])
    assert [matcher.feed("one E"), matcher.feed("ND two")] == ["one ", ""]
    assert matcher.matched == "END"


class PieceTokenizer:
    """Token n stands for the n-th of given byte strings."""

    vocab_size = 1000
    eos_token_ids = frozenset[int]()

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: object) -> str:
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def run(pieces: list[bytes], stop_list: list[str], *, logprobs: bool = False) -> tuple[list[TextPiece], TextState]:
    state = TextState(PieceTokenizer(pieces), stop_list)
    out: list[TextPiece | None] = []
    for token, raw in enumerate(pieces):
        choice = TokenChoice(token, raw.decode(errors="replace"), raw, -0.5)
        out.append(state.push(token, TokenLogprob(choice, ()) if logprobs else None))
        if state.matched is not None:
            break
    else:
        out.append(state.finish())
    return [piece for piece in out if piece is not None], state


@given(st.text(max_size=20), st.lists(st.integers(0, 60), max_size=10))
def test_every_cut_of_the_bytes_gives_the_same_text(text: str, borders: list[int]) -> None:
    raw = text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace").encode()
    edges = [0, *sorted({min(b, len(raw)) for b in borders}), len(raw)]
    pieces = [raw[a:b] for a, b in itertools.pairwise(edges)]
    shown = run(pieces, [])[0]
    assert "".join(piece.text for piece in shown) == raw.decode()


def test_a_character_is_never_shown_in_parts() -> None:
    shown, _ = run([bytes([b]) for b in "é🙂".encode()], [])
    assert [piece.text for piece in shown] == ["é", "🙂"]


def test_bytes_that_are_not_utf8_become_replacement_characters() -> None:
    shown, _ = run([b"a\xff", b"b"], [])
    assert "".join(piece.text for piece in shown) == "a�b"


def test_a_character_that_is_never_completed_is_dropped() -> None:
    shown, _ = run([b"ok", "🙂".encode()[:3]], [])
    assert "".join(piece.text for piece in shown) == "ok"


@given(
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"ba", b"", "é".encode(), "é".encode()[:1], "é".encode()[1:]])), stops
)
def test_logprobs_stay_one_to_one_with_tokens(pieces: list[bytes], stop_list: list[str]) -> None:
    shown, state = run(pieces, stop_list, logprobs=True)
    entries = [entry.chosen.token_id for piece in shown for entry in piece.logprobs]
    assert entries == list(range(len(entries))), "in order, none twice"
    if state.matched is None:
        complete = b"".join(pieces)
        assert len(entries) == len(pieces), f"one entry a token in {complete!r}"
    text = "".join(piece.text for piece in shown)
    joined = b"".join(pieces[token] for token in entries).decode(errors="replace")
    assert joined.startswith(text), "the entries cover the text"


def test_a_token_cut_by_a_stop_string_keeps_its_entry_only_when_it_shows_text() -> None:
    shown, _ = run([b"one", b" two END", b" three"], ["END"], logprobs=True)
    assert [entry.chosen.token_id for piece in shown for entry in piece.logprobs] == [0, 1]
    shown, _ = run([b"one", b"EN", b"D"], ["END"], logprobs=True)
    assert [entry.chosen.token_id for piece in shown for entry in piece.logprobs] == [0]


def test_special_tokens_are_shown_as_they_are_asked_for() -> None:
    state = TextState(PieceTokenizer([b"a", b""]), [], {1: "<think>"})
    assert state.push(1) == TextPiece("<think>")
    assert state.push(0) == TextPiece("a")
