"""The native decoder on tiny models with random weights, against the same models on MLX in float32."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_map

from mlxcel.engine.backend import ModelInfo
from mlxcel.engine.cache.retention import Retention
from mlxcel.engine.native_backend import NativeBackend
from mlxcel.kernels.decoder import build_decoder, decoder_shape
from mlxcel.models.mlxlm import make_prompt_cache, model_classes

from .scripted import ByteTokenizer

VOCABULARY = 258
COMMON = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", COMMON),
    "llama, head of its own": ("llama", {**COMMON, "tie_word_embeddings": False}),
    "llama, frequencies scaled": ("llama", {**COMMON, "rope_scaling": LLAMA3_ROPE}),
    "llama, positions scaled": ("llama", {**COMMON, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama, pairs side by side": ("llama", {**COMMON, "rope_traditional": True}),
    "qwen2": ("qwen2", COMMON),
    "qwen3": ("qwen3", COMMON),
}
QUANTISED: dict[str, tuple[int, int] | mx.Dtype] = {
    "4 bits in 32": (4, 32),
    "4 bits in 64": (4, 64),
    "8 bits in 32": (8, 32),
    "3 bits in 64": (3, 64),
    "6 bits in 64": (6, 64),
    "float32": mx.float32,
    "bfloat16": mx.bfloat16,
    "float16": mx.float16,
}


def make_model(name: str, weights: str) -> nn.Module:
    model_type, config = MODELS[name]
    mx.random.seed(7)
    model_class, args_class = model_classes(model_type)
    model = model_class(args_class.from_dict({"model_type": model_type, **config}))
    model.update(tree_map(lambda p: mx.random.normal(p.shape) * 0.1, model.parameters()))
    kind = QUANTISED[weights]
    if isinstance(kind, tuple):
        nn.quantize(model, bits=kind[0], group_size=kind[1])
    else:
        model.set_dtype(kind)
    mx.eval(model.parameters())
    return model


def backend(
    name: str,
    weights: str,
    *,
    precision: str = "default",
    threads: int = 2,
    blocks: int = 64,
    retention: Retention | None = None,
) -> NativeBackend:
    model = make_model(name, weights)
    shape = decoder_shape(model)
    assert shape is not None
    decoder = build_decoder(model, shape, precision=precision, threads=threads, kv_budget=blocks * shape.kv_block_bytes)
    info = ModelInfo(name, ByteTokenizer(), VOCABULARY, 4096, None)
    return NativeBackend(decoder, info, VOCABULARY, retention)


def reference(name: str, weights: str, tokens: list[int]) -> np.ndarray:
    """Logits after the last token, by MLX in float32."""
    model = make_model(name, weights)
    model.set_dtype(mx.float32)
    return np.array(model(mx.array([tokens]), cache=make_prompt_cache(model))[0, -1])


def prompt(length: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def last_logits(engine: NativeBackend, tokens: list[int], chunk: int = 1000) -> np.ndarray:
    for start in range(0, len(tokens) - 1, chunk):
        engine.prefill(1, tokens[start : min(start + chunk, len(tokens) - 1)])
    engine.join(1)
    logits = engine.decode(tokens[-1:])[0].copy()
    engine.leave([])
    return logits


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", ["4 bits in 32", "bfloat16"])
def test_every_model_says_what_it_says_on_mlx(name: str, weights: str) -> None:
    tokens = prompt(150)
    assert distance(last_logits(backend(name, weights), tokens), reference(name, weights, tokens)) < 0.01


@pytest.mark.parametrize("weights", QUANTISED)
@pytest.mark.parametrize(("precision", "bound"), [("exact", 0.01), ("default", 0.01), ("fast", 0.05)])
def test_every_kind_of_weights_in_every_precision(weights: str, precision: str, bound: float) -> None:
    tokens = prompt(70)
    said = last_logits(backend("llama", weights, precision=precision), tokens)
    assert distance(said, reference("llama", weights, tokens)) < bound


def test_a_row_is_the_same_to_the_bit_in_any_chunks_on_any_threads() -> None:
    tokens = prompt(200)
    wanted = last_logits(backend("qwen3", "4 bits in 32"), tokens)
    for chunk, threads in ((1, 1), (7, 2), (64, 3), (65, 1), (199, 4)):
        engine = backend("qwen3", "4 bits in 32", threads=threads)
        assert np.array_equal(last_logits(engine, tokens, chunk), wanted), (chunk, threads)


@pytest.mark.parametrize("precision", ["default", "fast", "exact"])
def test_a_row_is_the_same_to_the_bit_in_any_company(precision: str) -> None:
    """Nine sequences of different lengths join and leave; each gets the logits it gets alone."""
    lengths = [1, 64, 130, 5, 63, 65, 2, 100, 33]
    alone = {}
    for key, length in enumerate(lengths):
        engine = backend("llama", "4 bits in 32", precision=precision)
        alone[key] = last_logits(engine, prompt(length, key))
    engine = backend("llama", "4 bits in 32", precision=precision)
    rows: list[int] = []
    for key, length in enumerate(lengths):
        tokens = prompt(length, key)
        if length > 1:
            engine.prefill(key, tokens[:-1])
        engine.join(key)
        rows.append(key)
        # Everybody but the newcomer repeats an arbitrary token; the newcomer gives its last one.
        logits = engine.decode([3] * (len(rows) - 1) + tokens[-1:])
        assert np.array_equal(logits[-1], alone[key]), key
        if len(rows) > 4:
            engine.leave([0, 2, 3])
            rows = [rows[0], rows[2], rows[3]]


def test_memory_of_sequences_that_left_is_used_again() -> None:
    engine = backend("llama", "4 bits in 32")
    decoder = engine._decoder
    for round_number in range(40):
        engine.prefill(round_number, prompt(500, round_number))
        if round_number % 2:
            engine.kv.discard(round_number)
            engine.kv.discard(round_number)
        else:
            engine.join(round_number)
            engine.decode([1])
            engine.leave([])
        assert decoder.used_blocks == 0
    engine.prefill(1, prompt(10))
    engine.prefill(2, prompt(10))
    engine.join(1)
    engine.reset()
    assert decoder.used_blocks == 0


def test_a_full_cache_refuses_the_step_and_harms_nobody() -> None:
    engine = backend("llama", "4 bits in 32")
    tokens = prompt(100)
    wanted = last_logits(backend("llama", "4 bits in 32"), tokens)
    engine.prefill(1, tokens[:-1])
    with pytest.raises(MemoryError):
        engine.prefill(2, prompt(64 * 64))
    engine.join(1)
    assert np.array_equal(engine.decode(tokens[-1:])[0], wanted)


@pytest.mark.parametrize("token", [-1, VOCABULARY])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    engine = backend("llama", "4 bits in 32")
    with pytest.raises(IndexError):
        engine.prefill(1, [1, token])
    assert np.isfinite(last_logits(engine, prompt(5))).all()
