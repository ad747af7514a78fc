"""The MLX backend on tiny models with random weights: a row is the same alone and in company."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_map

from mlxcel import kernels
from mlxcel.engine.backend import ModelInfo
from mlxcel.engine.cache.batch import can_batch
from mlxcel.engine.loading import warm_up
from mlxcel.engine.runner import MlxBackend
from mlxcel.models.mlxlm import make_prompt_cache, model_classes

from .scripted import ByteTokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
COMMON = {**SIZES, "vocab_size": 258, "rms_norm_eps": 1e-5, "head_dim": 16, "tie_word_embeddings": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "num_hidden_layers": 2},
    "qwen3": {**COMMON, "num_hidden_layers": 2, "max_position_embeddings": 4096, "rope_theta": 1e4},
    "gemma3_text": {**COMMON, "num_hidden_layers": 7, "sliding_window": 8, "sliding_window_pattern": 6},
    "mamba2": {
        "num_heads": 4,
        "head_dim": 16,
        "vocab_size": 258,
        "hidden_size": 32,
        "intermediate_size": 64,
        "state_size": 16,
        "num_hidden_layers": 2,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": [0.0, float("inf")],
        "time_step_rank": "auto",
    },
}


def backend(model_type: str) -> MlxBackend:
    mx.random.seed(3)
    model_class, args_class = model_classes(model_type)
    model = model_class(args_class.from_dict({"model_type": model_type, **CONFIGS[model_type]}))
    model.update(tree_map(lambda p: mx.random.normal(p.shape) * 0.15, model.parameters()))
    mx.eval(model.parameters())
    installed = kernels.install(model)
    tokenizer = ByteTokenizer()
    info = ModelInfo(model_type, tokenizer, 258, 4096, None, can_batch=can_batch(make_prompt_cache(model)))
    return MlxBackend(model, info, installed)


def alone(model_type: str, prompt: list[int], steps: int) -> tuple[list[int], list[np.ndarray]]:
    """Greedy continuation and logits by the model itself, fed one whole prompt, without a backend."""
    model = backend(model_type)._model
    cache = make_prompt_cache(model)
    tokens, rows = list(prompt), []
    out: list[int] = []
    for _ in range(steps):
        logits = np.array(model(mx.array([tokens]), cache=cache)[0, -1])
        rows.append(logits)
        out.append(int(logits.argmax()))
        tokens = out[-1:]
    return out, rows


def prompts(count: int, longest: int = 40) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(258) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


@pytest.mark.parametrize("model_type", CONFIGS)
@pytest.mark.parametrize("chunk", [3, 1000])
def test_rows_that_come_and_go_get_the_logits_they_get_alone(model_type: str, chunk: int) -> None:
    """Five sequences with different lengths join at different steps, two leave early, in any order."""
    wanted = {key: alone(model_type, prompt, 8) for key, prompt in enumerate(prompts(5))}
    engine = backend(model_type)
    assert engine.info.can_batch
    joins, lifetime = {0: [0], 1: [1, 2], 3: [3], 4: [4]}, {0: 8, 1: 2, 2: 8, 3: 3, 4: 8}
    rows: list[int] = []
    said: dict[int, list[int]] = {}
    for step in range(14):
        for key in joins.get(step, []):
            prompt = prompts(5)[key]
            for start in range(0, len(prompt) - 1, chunk):
                engine.prefill(key, prompt[start : min(start + chunk, len(prompt) - 1)])
            engine.join(key)
            rows.append(key)
            said[key] = []
        if not rows:
            continue
        inputs = [said[key][-1] if said[key] else prompts(5)[key][-1] for key in rows]
        logits = engine.decode(inputs)
        assert logits.shape == (len(rows), 258)
        assert logits.dtype == np.float32
        for key, row in zip(rows, logits, strict=True):
            np.testing.assert_allclose(row, wanted[key][1][len(said[key])], rtol=1e-3, atol=1e-3)
            said[key].append(int(row.argmax()))
        keep = [i for i, key in enumerate(rows) if len(said[key]) < lifetime[key]]
        if len(keep) < len(rows):
            engine.leave(keep)
            rows = [rows[i] for i in keep]
    assert {key: len(text) for key, text in said.items()} == lifetime
    assert all(text == wanted[key][0][: lifetime[key]] for key, text in said.items())


def test_a_discarded_sequence_leaves_no_cache() -> None:
    engine = backend("llama")
    engine.prefill(1, [1, 2, 3])
    engine.discard(1)
    engine.discard(1)
    engine.prefill(1, [4])
    engine.join(1)
    row = engine.decode([5])[0]
    np.testing.assert_allclose(row, alone("llama", [4, 5], 1)[1][0], rtol=1e-3, atol=1e-3)


def test_reset_drops_everything() -> None:
    engine = backend("llama")
    engine.prefill(1, [1, 2, 3])
    engine.prefill(2, [1, 2])
    engine.join(1)
    engine.decode([4])
    engine.reset()
    engine.prefill(2, [4])
    engine.join(2)
    assert engine.decode([5]).shape[0] == 1


def test_warm_up_leaves_no_row() -> None:
    engine = backend("llama")
    warm_up(engine)
    engine.prefill(1, [1])
    engine.join(1)
    assert engine.decode([2]).shape[0] == 1
