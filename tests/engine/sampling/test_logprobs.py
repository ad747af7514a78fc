from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.logprobs import logprobs, token_logprob

from ..scripted import EOS, ByteTokenizer
from .oracle import Voice, rows, softmax


@given(rows, st.integers(0, 20))
def test_they_are_those_of_the_softmax(row: np.ndarray, count: int) -> None:
    own, best = logprobs(row, 0, count)
    with np.errstate(divide="ignore"):
        wanted = np.log(softmax(row))
    assert abs(own - wanted[0]) < 1e-4
    assert [token for token, _ in best] == np.argsort(-row, kind="stable")[:count].tolist()
    for token, logprob in best:
        assert logprob == wanted[token] or abs(logprob - wanted[token]) < 1e-4


def test_bias_penalties_and_filters_do_not_show() -> None:
    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    params = SamplingParams(logit_bias=((0, -math.inf),), presence_penalty=1.0, top_k=2, temperature=3.0)
    speaks = Voice(params, alternatives=3)
    for _ in range(5):
        chosen = speaks.next(row)
        assert chosen.token != 0
        assert chosen.logprobs is not None
        own, best = chosen.logprobs
        assert math.isclose(own, row[chosen.token], abs_tol=1e-4)
        assert [token for token, _ in best] == [0, 1, 2]


def test_they_are_left_out_unless_asked_for() -> None:
    assert Voice(SamplingParams()).next(np.zeros(3, np.float32)).logprobs is None


def test_an_entry_has_the_text_of_its_tokens() -> None:
    entry = token_logprob(ord("b"), (-0.5, [(0xC3, -0.1), (EOS, -3.0)]), ByteTokenizer())
    assert (entry.chosen.text, entry.chosen.raw, entry.chosen.logprob) == ("b", b"b", -0.5)
    assert [(choice.token_id, choice.text, choice.raw) for choice in entry.top] == [
        (0xC3, "\ufffd", b"\xc3"),
        (EOS, "", b""),
    ]
