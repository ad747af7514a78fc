from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.bias import Bias
from mlxcel.engine.sampling.edits import Edits
from mlxcel.engine.sampling.rows_numpy import NumpyRows

from ..scripted import EOS, VOCABULARY
from .oracle import OFF, voice

biases = st.dictionaries(st.integers(0, 19), st.one_of(st.floats(-100, 100), st.just(-math.inf)))


@given(biases, st.sets(st.integers(0, 30)), st.booleans())
def test_amounts_are_added_and_ends_are_banned(bias: dict[int, float], ends: set[int], ignore: bool) -> None:
    row = np.linspace(-3, 3, 20, dtype=np.float32)
    expected = row.copy()
    for token, value in bias.items():
        expected[token] += np.float32(value)
    if ignore:
        expected[[token for token in ends if token < 20]] = -np.inf  # a tokenizer may know more tokens than the model
    stage = Bias(SamplingParams(logit_bias=tuple(bias.items()), ignore_eos=ignore), ends)
    assert stage.enabled == bool(bias or (ignore and ends))
    edits = Edits(row, NumpyRows())
    stage.apply(edits)
    assert np.array_equal(row, expected)
    edits.undo()
    assert np.array_equal(row, np.linspace(-3, 3, 20, dtype=np.float32))


def test_a_banned_token_never_comes_and_a_promoted_one_does() -> None:
    row = np.array([5.0, 0.0, 0.0], np.float32)
    assert {voice(logit_bias=((0, -math.inf),), seed=seed)(row) for seed in range(40)} == {1, 2}
    assert voice(logit_bias=((2, 100.0),))(row) == 2
    assert voice(logit_bias=((2, 100.0),), temperature=0.0)(row) == 2


def test_the_end_token_is_ignored_on_request() -> None:
    row = np.zeros(VOCABULARY, np.float32)
    row[EOS] = 50.0
    assert voice(**OFF)(row) == EOS
    assert EOS not in {voice(ignore_eos=True, seed=seed)(row) for seed in range(40)}
    assert voice(ignore_eos=True, temperature=0.0)(row) == 0
