"""The native decoder and the models the kernel benchmarks measure."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from benchmarks.native import PIECE, NativeDecoder, random_model
from mlxcel.kernels.native import NativeUnavailable, instruction_set

try:
    instruction_set()
except NativeUnavailable as reason:
    pytest.skip(str(reason), allow_module_level=True)

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
PROMPT = [7 * i % 320 for i in range(PIECE + 40)]


def decoder(rows: int = 2) -> NativeDecoder:
    return NativeDecoder(random_model(SMALL), precision="exact", threads=2, rows=rows, context=len(PROMPT) + 64)


def test_a_random_model_computes_like_any_other() -> None:
    model = random_model(SMALL)
    logits = np.array(model(mx.array([PROMPT[:50]]), cache=make_prompt_cache(model))[0, -1].astype(mx.float32))
    assert np.isfinite(logits).all()
    assert 0.01 < logits.std() < 100
    assert decoder().prefill(PROMPT[:50]) in np.argsort(logits)[-3:]


def test_a_prompt_in_pieces_and_step_by_step_leads_to_the_same_token() -> None:
    measured = decoder()
    whole = measured.prefill(PROMPT)
    measured.fill([PROMPT[:-1], PROMPT[:20]])
    assert measured.step([PROMPT[-1], PROMPT[20]]) == [whole, measured.prefill(PROMPT[:21])]


def test_extending_continues_the_first_sequence() -> None:
    measured = decoder()
    whole = measured.prefill(PROMPT)
    measured.fill([[]])
    measured.extend(PROMPT[:300])
    measured.extend(PROMPT[300:-1])
    assert measured.step(PROMPT[-1:]) == [whole]


def test_filling_again_gives_the_places_of_before_back() -> None:
    measured = decoder(rows=2)
    for _ in range(4):
        measured.fill([PROMPT, PROMPT])
    assert len(measured.step([1, 2])) == 2
