"""The MLX backend on tiny models with random weights: a row is the same alone and in company."""

from __future__ import annotations

import random

import mlx.core as mx
import numpy as np
import pytest

from mlxcel import kernels
from mlxcel.engine.backend import ModelInfo
from mlxcel.engine.cache.batch import LayerCaches
from mlxcel.engine.cache.kv_mode import KvMode
from mlxcel.engine.cache.probe import packing, paged_kv, row_caches
from mlxcel.engine.cache.retention import Retention
from mlxcel.engine.loading import warm_up
from mlxcel.engine.runner import MlxBackend
from mlxcel.engine.sampling.rows import make_rows
from mlxcel.models.mlxlm import make_prompt_cache
from tests.kernels.small_models import random_model

from .scripted import ByteTokenizer

FAMILIES = ("llama", "qwen3", "qwen3_moe", "gemma3_text", "qwen3_next", "mamba2")
TO_THE_BIT = frozenset({"llama", "qwen3", "qwen3_moe", "gemma3_text"})
"""Families all of whose operations are ours or element by element."""
PACKED = {"int8": KvMode(8, 8), "int4 values": KvMode(None, 4, outer=1), "4 bits": KvMode(4, 4, skip_last=True)}
CASES = [(family, "stock") for family in FAMILIES]
CASES += [(family, "native") for family in FAMILIES]
CASES += [(family, "paged") for family in FAMILIES if family != "mamba2"]
CASES += [("llama", "int8"), ("qwen3_moe", "int4 values"), ("qwen3_next", "4 bits")]


def backend(model_type: str, kind: str = "paged", blocks: int = 5, retention: Retention | None = None) -> MlxBackend:
    """kind: `stock` MLX, the same with caches of a `KvMode`, the `native` kernels with mlx-lm's caches, or with `paged`
    ones, of so many blocks."""
    model = random_model(model_type, seed=3, vocabulary=258)
    with pytest.MonkeyPatch.context() as patch:
        if kind in ("stock", *PACKED):
            patch.setenv("MLXCEL_KERNELS", "mlx")
        installed = kernels.install(model, threads=2, precision="exact")

    def make() -> LayerCaches:
        return make_prompt_cache(model)

    if kind in PACKED:
        make = packing(model, make, PACKED[kind])
    paged = None
    if kind == "paged":
        paged = paged_kv(model, make, installed.operations, lambda block: blocks * block)
        assert paged is not None
    caches = row_caches(model, make, paged, lambda cost: 1 << 30, retention)
    info = ModelInfo(model_type, ByteTokenizer(), 258, 4096, None, can_batch=caches.can_batch)
    return MlxBackend(model, info, installed, caches, make_rows())


def alone(model_type: str, kind: str, prompt: list[int], steps: int) -> tuple[list[int], list[np.ndarray]]:
    """Greedy continuation and logits of one sequence, its prompt read at once."""
    engine = backend(model_type, kind)
    if len(prompt) > 1:
        engine.prefill(0, prompt[:-1])
    engine.join(0)
    out, rows = prompt[-1:], []
    for _ in range(steps):
        rows.append(engine.decode(out[-1:])[0].copy())
        out.append(int(rows[-1].argmax()))
    return out[1:], rows


def prompts(count: int, longest: int = 40) -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(258) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


@pytest.mark.parametrize(("model_type", "kind"), CASES)
@pytest.mark.parametrize("chunk", [3, 1000])
def test_rows_that_come_and_go_get_the_logits_they_get_alone(model_type: str, kind: str, chunk: int) -> None:
    """Five sequences with different lengths join at different steps, two leave early, in any order."""
    wanted = {key: alone(model_type, kind, prompt, 8) for key, prompt in enumerate(prompts(5))}
    engine = backend(model_type, kind)
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
            expected = wanted[key][1][len(said[key])]
            if kind == "paged" and model_type in TO_THE_BIT:
                assert np.array_equal(row, expected)
            np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-3)
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
    engine.kv.discard(1)
    engine.kv.discard(1)
    engine.prefill(1, [4])
    engine.join(1)
    row = engine.decode([5])[0]
    np.testing.assert_allclose(row, alone("llama", "paged", [4, 5], 1)[1][0], rtol=1e-3, atol=1e-3)


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


@pytest.mark.parametrize("kind", ["stock", "native", "paged"])
def test_the_engine_says_what_the_model_says(kind: str) -> None:
    """The backend against mlx-lm's own model and caches in float32."""
    prompt = prompts(1)[0]
    model = backend("qwen3", "stock")._model
    expected = np.asarray(model(mx.array([prompt]), cache=make_prompt_cache(model))[0, -1])
    (row,) = alone("qwen3", kind, prompt, 1)[1]
    # Half-precision keys and values cost a few thousandths of the largest logit.
    bound = (0.01 if kind == "paged" else 1e-4) * np.abs(expected).max()
    assert np.abs(row - expected).max() <= bound


def test_blocks_go_back_when_rows_leave() -> None:
    engine = backend("llama")
    paged = engine.kv._paged
    assert paged is not None
    for _ in range(3):
        engine.prefill(1, list(range(200)))
        engine.prefill(2, [1])
        engine.join(1)
        engine.join(2)
        engine.decode([1, 2])
        assert paged.cache.used_blocks == 5
        engine.leave([1])
        assert paged.cache.used_blocks == 1
        engine.reset()
        assert paged.cache.used_blocks == 0


def test_a_step_that_failed_can_be_done_again() -> None:
    engine = backend("llama")
    engine.prefill(1, [1, 2, 3])
    with pytest.raises(MemoryError):
        engine.prefill(1, [0] * 1000)
    engine.prefill(1, [4])
    engine.join(1)
    assert np.array_equal(engine.decode([5])[0], alone("llama", "paged", [1, 2, 3, 4, 5], 1)[1][0])
