"""The native decoder runs every family as mlx-lm does in float32, and treats a row the same in any company."""

from __future__ import annotations

import random
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.kernels import progress
from mlxcel.kernels.decoder import build_decoder, decoder_shape
from mlxcel.models.mlxlm import make_prompt_cache, model_classes

from .families import COMMON, MODELS, VOCABULARY, make_model

STEPS = 4
QUANTISED_AND_DENSE = ("mixed bits", "bfloat16")


def build(model: nn.Module, *, precision: str = "exact", threads: int = 2) -> Any:
    shape = decoder_shape(model)
    assert shape is not None
    return build_decoder(model, shape, precision=precision, threads=threads, kv_budget=64 * shape.kv_block_bytes)


def text(length: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def expected(name: str, weights: str, tokens: list[int]) -> np.ndarray:
    """Logits [STEPS + 1, vocabulary] by MLX in float32: of a prefill and of the steps after it.

    Keys and values are rounded to bfloat16, as the decoder keeps them.
    """
    model = make_model(name, weights)
    model.set_dtype(mx.float32)
    caches = make_prompt_cache(model)
    for cache in caches:
        keep = cache.update_and_fetch
        cache.update_and_fetch = lambda keys, values, keep=keep: keep(_rounded(keys), _rounded(values))
    rows = [model(mx.array([tokens[:-STEPS]]), cache=caches)[0, -1]]
    rows += [model(mx.array([[token]]), cache=caches)[0, -1] for token in tokens[-STEPS:]]
    return np.array(mx.stack(rows))


def _rounded(array: mx.array) -> mx.array:
    return array.astype(mx.bfloat16).astype(mx.float32)


def said(decoder: Any, tokens: list[int], chunk: int = 1000) -> np.ndarray:
    """The same by the native decoder; the prefill in chunks."""
    sequence, prefill = decoder.open(), np.asarray(tokens[:-STEPS], np.int32)
    logits = np.empty((STEPS + 1, VOCABULARY), np.float32)
    for start in range(0, len(prefill), chunk):
        piece = prefill[start : start + chunk]
        decoder.step(piece, [(sequence, len(piece))], logits[:1])
    for step, token in enumerate(tokens[-STEPS:]):
        decoder.step(np.asarray([token], np.int32), [(sequence, 1)], logits[step + 1 : step + 2])
    decoder.close(sequence)
    return logits


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(max(np.linalg.norm(x - y) / np.linalg.norm(y) for x, y in zip(a, b, strict=True)))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("weights", QUANTISED_AND_DENSE)
def test_every_family_says_what_it_says_on_mlx(name: str, weights: str) -> None:
    tokens = text(90)
    wanted = expected(name, weights, tokens)
    assert np.std(wanted) > 1e-3, "a model that says nothing proves nothing"
    assert distance(said(build(make_model(name, weights)), tokens), wanted) < 2e-3
    assert distance(said(build(make_model(name, weights), precision="default"), tokens), wanted) < 0.02


@pytest.mark.parametrize("name", MODELS)
def test_a_row_is_the_same_to_the_bit_in_any_chunks_company_and_threads(name: str) -> None:
    lengths = [100, 70, 5, 66]
    alone = build(make_model(name, "4 bits in 32"), precision="default", threads=1)
    wanted = [said(alone, text(length, length)) for length in lengths]
    decoder = build(make_model(name, "4 bits in 32"), precision="default", threads=3)
    for chunk in (1, 2, 7, 64):
        assert np.array_equal(said(decoder, text(100, 100), chunk), wanted[0]), chunk
    sequences = [decoder.open() for _ in lengths]
    logits = np.empty((len(lengths), VOCABULARY), np.float32)
    prompts = [text(length, length) for length in lengths]
    pieces = [(sequence, length - STEPS) for sequence, length in zip(sequences, lengths, strict=True)]
    decoder.step(np.concatenate([np.asarray(tokens[:-STEPS], np.int32) for tokens in prompts]), pieces, logits)
    for step in range(STEPS + 1):
        for row, own in enumerate(wanted):
            assert np.array_equal(logits[row], own[step]), (step, row)
        if step < STEPS:
            tokens = np.asarray([prompt[step - STEPS] for prompt in prompts], np.int32)
            decoder.step(tokens, [(sequence, 1) for sequence in sequences], logits)


def other(model_type: str, **options: Any) -> nn.Module:
    model_class, args_class = model_classes(model_type)
    return model_class(args_class.from_dict({**COMMON, "model_type": model_type, **options}))


def test_what_is_not_understood_is_left_to_mlx() -> None:
    def changed(change: Any, name: str = "llama") -> nn.Module:
        model = make_model(name, "float32")
        change(model)
        return model

    class Wider(nn.Linear):
        pass

    layers = [
        lambda m: m.layers[1].update_modules({"mlp": {"down_proj": Wider(192, 128)}}),
        lambda m: setattr(m.layers[2].self_attn, "gate", nn.Linear(128, 128)),
        lambda m: setattr(m.layers[0], "mlp", make_model("phi3", "float32").layers[0].mlp),
        lambda m: setattr(m.layers[0].self_attn, "rope", nn.ALiBi()),
        lambda m: setattr(m.model, "norm", nn.GroupNorm(2, 128)),
        lambda m: setattr(m, "adapter", nn.Linear(2, 2)),
        lambda m: setattr(m.layers[0].self_attn, "q_proj", nn.QuantizedLinear(128, 128, True, 32, 4)),
        lambda m: setattr(m.layers[0].self_attn, "n_heads", 8),
    ]
    assert decoder_shape(changed(lambda _model: None)) is not None
    for number, change in enumerate(layers):
        assert decoder_shape(changed(change)) is None, number
    assert decoder_shape(other("llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0})) is None
    assert decoder_shape(other("llama", head_dim=24)) is None
    assert decoder_shape(other("gpt2", n_ctx=64, n_embd=128, n_head=4, n_layer=2, n_positions=64)) is None


def test_progress_is_reported_while_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", 0.0)
    model, words = make_model("llama", "float32"), list[str]()
    shape = decoder_shape(model)
    assert shape is not None
    build_decoder(model, shape, precision="default", threads=2, kv_budget=1 << 20, progress=words.append)
    assert words == [f"packing weights: layer {layer} of 3" for layer in (1, 2, 3)]


def test_the_profile_accounts_for_the_time_of_its_steps() -> None:
    decoder = build(make_model("olmo2", "float32"))
    said(decoder, text(20))
    assert decoder.profile() == {}
    decoder.measure(True)
    said(decoder, text(20))
    profile = decoder.profile()
    assert profile.pop("steps") == STEPS + 1
    assert all(seconds > 0 for seconds in profile.values()), profile
    decoder.measure(True)
    assert sum(decoder.profile().values()) == 0
    decoder.measure(False)
    assert decoder.profile() == {}
