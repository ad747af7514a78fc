from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from mlxcel.models import arrays, mlxlm
from mlxcel.models.errors import ModelError
from mlxcel.models.gguf import GgufFile
from mlxcel.models.gguf_llama import llama_config, load_llama
from tests.models import tiny
from tests.models.gguf_writer import Tensor, decode, encode, gguf

TOKENS = mx.array([[5, 40, 262, 17, 3, 99, 120, 8]])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def load(path: Path, float_type: mx.Dtype = mx.float32) -> tuple[nn.Module, dict[str, Any]]:
    with GgufFile(path) as file:
        config = llama_config(file)
        return load_llama(file, config, float_type), config


def logits(model: Any) -> np.ndarray:
    return np.array(model(TOKENS).astype(mx.float32))


def reference_logits(folder: Path, config: dict[str, Any], values: dict[str, np.ndarray]) -> np.ndarray:
    return logits(mlxlm.load_folder(tiny.write_folder(folder, config, arrays=values))[0])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": False},
        {"attention_bias": True},
        {"head_dim": 16, "num_key_value_heads": 4, "rope_theta": 100000.0},
    ],
)
def test_same_logits_as_the_folder_of_the_same_weights(path: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    config = {**tiny.CONFIG, **changes}
    model, found = load(tiny.write_gguf(path, config))
    expected = reference_logits(tmp_path / "folder", config, tiny.weights(config))
    np.testing.assert_array_equal(logits(model), expected)
    assert {key: found[key] for key in config} == pytest.approx(config)
    assert found["vocab_size"] == len(tiny.vocabulary())


def test_linear_rope_scaling(path: Path, tmp_path: Path) -> None:
    extra = {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0}
    model, _ = load(tiny.write_gguf(path, **extra))
    config = {**tiny.CONFIG, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    expected = reference_logits(tmp_path / "folder", config, tiny.weights(config))
    np.testing.assert_array_equal(logits(model), expected)


def test_frequency_factors_of_llama_3(path: Path, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = {**tiny.CONFIG, "rope_scaling": scaling}
    periods = 10000.0 ** (np.arange(0, 32, 2) / 32)
    rotations = 64 / (2 * np.pi * periods)  # within the original context
    smooth = np.clip((rotations - 1.0) / (4.0 - 1.0), 0, 1)
    factors = 1 / ((1 - smooth) / 8.0 + smooth)
    assert len({*factors.round(3)}) > 2
    tensors = tiny.gguf_tensors(tiny.CONFIG, tiny.weights(config))
    tensors.append(encode("rope_freqs.weight", "F32", factors))
    path.write_bytes(gguf(tiny.gguf_metadata(tiny.CONFIG), tensors))
    model, _ = load(path)
    expected = reference_logits(tmp_path / "folder", config, tiny.weights(config))
    np.testing.assert_allclose(logits(model), expected, atol=1e-4)
    plain, _ = load(tiny.write_gguf(path))
    assert np.abs(logits(plain) - expected).max() > 1e-2


def test_mixed_quantisation_keeps_every_value(path: Path, tmp_path: Path) -> None:
    kinds = {"token_embd": "Q8_0", "attn_q": "Q4_1", "attn_k": "Q4_0", "attn_v": "F16", "ffn_up": "BF16"}

    def kind_of(name: str) -> str:
        return next((kind for part, kind in kinds.items() if part in name), "Q4_1")

    tensors = tiny.gguf_tensors(tiny.CONFIG, tiny.weights(tiny.CONFIG), kind_of)
    path.write_bytes(gguf(tiny.gguf_metadata(tiny.CONFIG), tensors))
    model, _ = load(path)
    stored = {tensor.name: decode(tensor) for tensor in tensors}
    layer = model.model.layers[1]
    assert (model.model.embed_tokens.bits, layer.self_attn.q_proj.bits, layer.mlp.down_proj.bits) == (8, 4, 4)
    assert type(layer.self_attn.v_proj) is nn.Linear
    for module, name in (
        (model.model.embed_tokens, "token_embd.weight"),
        (layer.mlp.down_proj, "blk.1.ffn_down.weight"),
        (layer.self_attn.o_proj, "blk.1.attn_output.weight"),
    ):
        values = mx.dequantize(module.weight, module.scales, module.biases, group_size=32, bits=module.bits)
        np.testing.assert_array_equal(np.array(values), stored[name])
    assert {array.dtype for array in arrays.parameters(model).values()} == {mx.uint32, mx.float32}

    # The whole model, rows of q and k in order: against a dense one of the same values.
    rounded = {}
    for name, values in tiny.weights(tiny.CONFIG).items():
        tensor = tiny.gguf_tensors(
            {**tiny.CONFIG, "num_attention_heads": 0, "num_key_value_heads": 0}, {name: values}, kind_of
        )
        rounded[name] = decode(tensor[0])
    np.testing.assert_allclose(logits(model), reference_logits(tmp_path / "folder", tiny.CONFIG, rounded), atol=2e-3)


@pytest.mark.parametrize("float_type", [mx.float16, mx.bfloat16])
def test_one_float_type_for_all(path: Path, float_type: mx.Dtype) -> None:
    for kind in ("F32", "F16", "BF16", "Q4_0", "Q8_0"):
        model, _ = load(tiny.write_gguf(path, kind=kind), float_type)
        assert {array.dtype for array in arrays.parameters(model).values()} <= {mx.uint32, float_type}


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"general.architecture": "qwen2"}, "architecture 'qwen2' is not supported"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"split.count": 2}, "split GGUF"),
        ({"llama.block_count": 0}, "claims 0 layers"),
        ({"llama.block_count": 1 << 31}, "claims 2147483648 layers"),
        ({"llama.block_count": 3}, "lacks the tensor 'blk.2.attn_norm.weight'"),
        ({"llama.block_count": 1}, "holds a tensor of no llama model, 'blk.1"),
        ({"llama.embedding_length": 128}, r"has the shape \[\d+, 64\] instead of \[\d+, 128\]"),
        ({"llama.embedding_length": 1 << 31}, "'llama.embedding_length' is 2147483648"),
        ({"llama.attention.head_count": 0}, "'llama.attention.head_count' is 0"),
        ({"llama.attention.head_count": [1, 2]}, "'llama.attention.head_count' is not a whole number"),
        ({"llama.attention.head_count_kv": 3}, "4 attention heads cannot share 3"),
        ({"llama.rope.dimension_count": 16}, "16 rotated dimensions are not supported"),
        ({"llama.rope.freq_base": 0.0}, "'llama.rope.freq_base' is 0"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "epsilon' is -1"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn' is not supported"),
        ({"llama.rope.scaling.type": "linear"}, "lacks 'llama.rope.scaling.factor'"),
    ],
)
def test_metadata_that_cannot_be_served(path: Path, metadata: dict[str, Any], reason: str) -> None:
    tensors = tiny.gguf_tensors(tiny.CONFIG, tiny.weights(tiny.CONFIG))
    path.write_bytes(gguf({**tiny.gguf_metadata(tiny.CONFIG), **metadata}, tensors))
    with pytest.raises(ModelError, match=reason):
        load(path)


@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        ({"token_embd.weight": None}, "no usable tensor 'token_embd.weight'"),
        ({"blk.1.ffn_up.weight": None}, "lacks the tensor 'blk.1.ffn_up.weight'"),
        ({"blk.0.attn_norm.weight": Tensor("blk.0.attn_norm.weight", "Q8_0", (64,), bytes(68))}, "vector .* Q8_0"),
        ({"extra": encode("extra.weight", "F32", np.ones(4))}, "holds a tensor of no llama model, 'extra.weight'"),
        ({"rope": encode("rope_freqs.weight", "F32", np.ones(3))}, "does not fit heads of 32"),
    ],
)
def test_tensors_that_do_not_match(path: Path, replace: dict[str, Tensor | None], reason: str) -> None:
    tensors = {tensor.name: tensor for tensor in tiny.gguf_tensors(tiny.CONFIG, tiny.weights(tiny.CONFIG))}
    kept = [tensor for tensor in {**tensors, **replace}.values() if tensor is not None]
    path.write_bytes(gguf(tiny.gguf_metadata(tiny.CONFIG), kept))
    with pytest.raises(ModelError, match=reason):
        load(path)
