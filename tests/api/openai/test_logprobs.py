"""The two shapes of log probabilities."""

from __future__ import annotations

import itertools
import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.api.openai.logprobs import LegacyFormatter, chat_logprobs
from mlxcel.engine.events import TokenChoice, TokenLogprob


def choice(raw: bytes, logprob: float = -0.5) -> TokenChoice:
    return TokenChoice(0, raw.decode(errors="replace"), raw, logprob)


def entry(raw: bytes, *top: TokenChoice) -> TokenLogprob:
    return TokenLogprob(choice(raw), top)


def test_chat_shape() -> None:
    entries = [entry(b"\xc3", choice(b"a", -0.25), choice(b"b", -math.inf)), entry(b"\xa9")]
    assert msgspec.to_builtins(chat_logprobs(entries)) == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -0.5,
                "bytes": [0xC3],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.25, "bytes": [97]},
                    {"token": "b", "logprob": -9999.0, "bytes": [98]},
                ],
            },
            {"token": "\ufffd", "logprob": -0.5, "bytes": [0xA9], "top_logprobs": []},
        ]
    }


def test_numbers_that_json_lacks_are_replaced() -> None:
    for odd in (-math.inf, math.nan, -1e300):
        logprobs = chat_logprobs([TokenLogprob(choice(b"a", odd), ())])
        assert logprobs.content[0].logprob == -9999.0


def test_legacy_shape() -> None:
    formatter = LegacyFormatter(2)
    first = formatter.format([entry(b"Hi", choice(b"Ho", -0.1), choice(b"\xff", -1), choice(b"\xfe", -2))])
    assert msgspec.to_builtins(first) == {
        "tokens": ["Hi"],
        "token_logprobs": [-0.5],
        "text_offset": [0],
        "top_logprobs": [{"Ho": -0.1, "\ufffd": -1, "Hi": -0.5}],
    }
    assert formatter.format([entry(b"!")]).text_offset == [2]
    assert LegacyFormatter(0).format([entry(b"a"), entry(b"b")]).top_logprobs == [None, None]


@given(st.text(), st.data())
def test_offsets_point_at_the_character_a_token_belongs_to(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)))) | {0, len(raw)})
    tokens = [raw[start:end] for start, end in itertools.pairwise(cuts)]
    formatter = LegacyFormatter(0)
    for start, token in zip(cuts, tokens, strict=False):
        whole = raw[:start].decode(errors="ignore")
        assert formatter.format([entry(token)]).text_offset == [len(whole)]


def test_special_tokens_take_no_room() -> None:
    formatter = LegacyFormatter(0)
    assert formatter.format([entry(b""), entry(b"a"), entry(b""), entry(b"b")]).text_offset == [0, 0, 1, 1]
