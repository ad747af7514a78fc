"""The `llama` architecture of GGUF (Llama, Mistral, SmolLM and their kin) as mlx-lm's `llama` model.

Metadata keys and tensor names: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from mlxcel.models import arrays, gguf_blocks, mlxlm
from mlxcel.models.errors import ModelError
from mlxcel.models.gguf import GgufFile, Metadata, TensorInfo, TensorType
from mlxcel.models.gguf_blocks import GROUP_SIZE, AffineWeight

_ROPE_FACTORS = "rope_freqs.weight"
_MAX_DIMENSION = 1 << 24


@dataclass(frozen=True, slots=True)
class _Slot:
    """One parameter of the model and the tensor that fills it."""

    tensor: str
    parameter: str
    shape: tuple[int, ...]
    rotary_heads: int = 0
    """Heads whose rows llama.cpp reordered for its rotary embedding; 0: rows are in order."""


def load_llama(file: GgufFile, config: dict[str, Any], float_type: mx.Dtype) -> nn.Module:
    """Build the model that `llama_config` read from `file`, every floating-point parameter in `float_type`.

    The model comes evaluated. Raises ModelError when configuration and tensors do not match.
    """
    slots = _slots(config)
    _check_tensors(file, slots)
    model_class, args_class = mlxlm.model_classes("llama")
    model = model_class(args_class.from_dict(config))
    _quantise_modules(file, model, slots)
    model.eval()
    model.load_weights(list(_parameters(file, slots, float_type)))
    if _ROPE_FACTORS in file.tensors:
        _scale_rotary_frequencies(file, model, config)
    return model


def llama_config(file: GgufFile) -> dict[str, Any]:
    """The configuration of a `llama` file in the terms of a `config.json`.

    Raises ModelError for another architecture, and when something in the metadata is missing or unsupported.
    """
    meta = file.metadata
    architecture = meta.text("general.architecture")
    if architecture != "llama":
        raise ModelError(f"{file.path}: the GGUF architecture {architecture!r} is not supported")
    if meta.integer("llama.expert_count", 0):
        raise ModelError(f"{file.path}: mixture-of-experts GGUF files are not supported")
    if meta.integer("split.count", 1) > 1:
        raise ModelError(f"{file.path}: is one part of a split GGUF file; join the parts into one file first")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{file.path}: has no usable tensor 'token_embd.weight'")
    layers = meta.integer("llama.block_count")
    if not 1 <= layers <= len(file.tensors):
        raise ModelError(f"{file.path}: claims {layers} layers")
    heads = _dimension(meta, "llama.attention.head_count")
    hidden = _dimension(meta, "llama.embedding_length")
    return {
        "model_type": "llama",
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": _dimension(meta, "llama.feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _key_value_heads(meta, heads),
        "head_dim": _head_dim(meta, hidden, heads),
        "rms_norm_eps": _positive(meta, "llama.attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": _dimension(meta, "llama.context_length"),
        "rope_theta": _positive(meta, "llama.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
    }


def _dimension(meta: Metadata, key: str, default: int | None = None) -> int:
    value = meta.integer(key, default)
    if not 1 <= value <= _MAX_DIMENSION:
        raise ModelError(f"{meta.path}: {key!r} is {value}")
    return value


def _positive(meta: Metadata, key: str, default: float | None = None) -> float:
    value = meta.number(key, default)
    if value <= 0:
        raise ModelError(f"{meta.path}: {key!r} is {value}")
    return value


def _key_value_heads(meta: Metadata, heads: int) -> int:
    count = _dimension(meta, "llama.attention.head_count_kv", heads)
    if heads % count:
        raise ModelError(f"{meta.path}: {heads} attention heads cannot share {count} key-value heads")
    return count


def _head_dim(meta: Metadata, hidden: int, heads: int) -> int:
    size = _dimension(meta, "llama.attention.key_length", hidden // heads)
    values = _dimension(meta, "llama.attention.value_length", size)
    rotated = _dimension(meta, "llama.rope.dimension_count", size)
    if not size == values == rotated or size % 2:
        raise ModelError(
            f"{meta.path}: heads of {size} key, {values} value and {rotated} rotated dimensions are not supported"
        )
    return size


def _rope_scaling(file: GgufFile) -> dict[str, Any] | None:
    meta = file.metadata
    if _ROPE_FACTORS in file.tensors:
        # The tensor holds the finished factors; the neutral ones named here only select the kind of embedding.
        return {"rope_type": "llama3", "factor": 1.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    kind = meta.text("llama.rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind != "linear":
        raise ModelError(f"{file.path}: the rope scaling {kind!r} is not supported")
    return {"rope_type": "linear", "factor": _positive(meta, "llama.rope.scaling.factor")}


def _slots(config: dict[str, Any]) -> list[_Slot]:
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    slots = [
        _Slot("token_embd.weight", "model.embed_tokens.weight", (vocabulary, hidden)),
        _Slot("output_norm.weight", "model.norm.weight", (hidden,)),
    ]
    if not config["tie_word_embeddings"]:
        slots.append(_Slot("output.weight", "lm_head.weight", (vocabulary, hidden)))
    for layer in range(config["num_hidden_layers"]):
        slots += _layer_slots(config, f"blk.{layer}", f"model.layers.{layer}")
    return slots


def _layer_slots(config: dict[str, Any], source: str, target: str) -> Iterator[_Slot]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    queries, keys = heads * config["head_dim"], kv_heads * config["head_dim"]
    yield _Slot(f"{source}.attn_norm.weight", f"{target}.input_layernorm.weight", (hidden,))
    yield _Slot(f"{source}.ffn_norm.weight", f"{target}.post_attention_layernorm.weight", (hidden,))
    for tensor, module, rows, columns, rotary_heads, biased in (
        ("attn_q", "self_attn.q_proj", queries, hidden, heads, config["attention_bias"]),
        ("attn_k", "self_attn.k_proj", keys, hidden, kv_heads, config["attention_bias"]),
        ("attn_v", "self_attn.v_proj", keys, hidden, 0, config["attention_bias"]),
        ("attn_output", "self_attn.o_proj", hidden, queries, 0, config["attention_bias"]),
        ("ffn_gate", "mlp.gate_proj", inner, hidden, 0, config["mlp_bias"]),
        ("ffn_up", "mlp.up_proj", inner, hidden, 0, config["mlp_bias"]),
        ("ffn_down", "mlp.down_proj", hidden, inner, 0, config["mlp_bias"]),
    ):
        yield _Slot(f"{source}.{tensor}.weight", f"{target}.{module}.weight", (rows, columns), rotary_heads)
        if biased:
            yield _Slot(f"{source}.{tensor}.bias", f"{target}.{module}.bias", (rows,), rotary_heads)


def _check_tensors(file: GgufFile, slots: list[_Slot]) -> None:
    """Everything the model needs is there in the right shape, and nothing else is."""
    for slot in slots:
        tensor = file.tensors.get(slot.tensor)
        if tensor is None:
            raise ModelError(f"{file.path}: lacks the tensor {slot.tensor!r}")
        if tensor.shape != slot.shape:
            raise ModelError(
                f"{file.path}: tensor {slot.tensor!r} has the shape {list(tensor.shape)} instead of {list(slot.shape)}"
            )
        if len(tensor.shape) == 1 and gguf_blocks.quantised_bits(tensor.type):
            raise ModelError(f"{file.path}: the vector {slot.tensor!r} has the type {tensor.type.name}")
    surplus = file.tensors.keys() - {slot.tensor for slot in slots} - {_ROPE_FACTORS}
    if surplus:
        raise ModelError(f"{file.path}: holds a tensor of no llama model, {min(surplus)!r}")


def _quantise_modules(file: GgufFile, model: nn.Module, slots: list[_Slot]) -> None:
    """Replace the modules whose weights are quantised, each with its own number of bits."""
    bits: dict[str, int] = {}
    for slot in slots:
        width = gguf_blocks.quantised_bits(file.tensors[slot.tensor].type)
        if width is not None:
            bits[slot.parameter.removesuffix(".weight")] = width

    def parameters_of(path: str, _module: nn.Module) -> bool | dict[str, Any]:
        return {"group_size": GROUP_SIZE, "bits": bits[path]} if path in bits else False

    cast(Any, nn).quantize(model, GROUP_SIZE, class_predicate=parameters_of)


def _parameters(file: GgufFile, slots: list[_Slot], float_type: mx.Dtype) -> Iterator[tuple[str, mx.array]]:
    """Name and evaluated array of every parameter, tensor by tensor in the order of the file."""
    for slot in sorted(slots, key=lambda slot: file.tensors[slot.tensor].offset):
        values = _read_slot(file, slot)
        if isinstance(values, AffineWeight):
            module = slot.parameter.removesuffix(".weight")
            scales = arrays.from_numpy(values.scales).astype(float_type)
            if isinstance(values.biases, int):
                biases = scales * values.biases
            else:
                biases = arrays.from_numpy(values.biases).astype(float_type)
            loaded = {
                f"{module}.weight": arrays.from_numpy(values.weight),
                f"{module}.scales": scales,
                f"{module}.biases": biases,
            }
        else:
            loaded = {slot.parameter: _dense_array(file.tensors[slot.tensor], values, float_type)}
        arrays.evaluate(loaded)
        yield from loaded.items()


def _read_slot(file: GgufFile, slot: _Slot) -> AffineWeight | npt.NDArray[np.generic]:
    tensor = file.tensors[slot.tensor]
    data = file.read(tensor)
    if slot.rotary_heads:
        data = _restore_row_order(data, slot.shape[0], slot.rotary_heads)
    if gguf_blocks.quantised_bits(tensor.type):
        return gguf_blocks.affine(tensor, data)
    return gguf_blocks.dense(tensor, data)


def _restore_row_order(data: npt.NDArray[np.uint8], rows: int, heads: int) -> npt.NDArray[np.uint8]:
    """llama.cpp rotates neighbouring rows of a head, MLX's llama row i with row i + head_dim / 2. Whole rows
    move, so stored blocks stay whole."""
    order = np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return data.reshape(rows, -1)[order].reshape(-1)


def _dense_array(tensor: TensorInfo, values: npt.NDArray[np.generic], float_type: mx.Dtype) -> mx.array:
    array = arrays.from_numpy(values)
    if tensor.type is TensorType.BF16:
        array = array.view(mx.bfloat16)
    return array.astype(float_type)


def _scale_rotary_frequencies(file: GgufFile, model: nn.Module, config: dict[str, Any]) -> None:
    """Llama 3's frequency scaling comes as one divisor for each pair of dimensions."""
    tensor = file.tensors[_ROPE_FACTORS]
    head_dim = config["head_dim"]
    if tensor.type is not TensorType.F32 or tensor.shape != (head_dim // 2,):
        raise ModelError(f"{file.path}: tensor {_ROPE_FACTORS!r} does not fit heads of {head_dim} dimensions")
    factors = arrays.from_numpy(gguf_blocks.dense(tensor, file.read(tensor)))
    periods = config["rope_theta"] ** (mx.arange(0, head_dim, 2) / head_dim) * factors
    arrays.evaluate(periods)
    for layer in cast(Any, model).layers:
        layer.self_attn.rope._freqs = periods
