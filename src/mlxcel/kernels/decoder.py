"""The native decoder: models of the common shape, packed from their MLX modules and run without a graph.

Which mlx-lm models have that shape is decided here, by class and by what their layers hold; every other model keeps
running on MLX.
"""

# mlx.nn's layers carry no annotations, so their attributes are unknown to the type checker here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from mlxcel.kernels import native

KV_BLOCK = 64
"""Positions in a block of the KV cache."""

_MODULES = frozenset(f"mlx_lm.models.{name}" for name in ("llama", "qwen2", "qwen3"))


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder of the common shape."""

    hidden: int
    feed_forward: int
    vocabulary: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of the cache for KV_BLOCK positions of one sequence: keys and values in bfloat16."""
        return self.layers * self.kv_heads * 2 * KV_BLOCK * self.head_dim * 2


def decoder_shape(model: nn.Module) -> Shape | None:
    """The shape of `model`, or None when the native decoder cannot run it."""
    if type(model).__module__ not in _MODULES:
        return None
    body = cast(Any, model).model
    layers = list(body.layers)
    if any(getattr(layer, "use_sliding", False) for layer in layers):
        return None
    attention, mlp = layers[0].self_attn, layers[0].mlp
    linears = (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
    if not all(_packable(linear) for linear in (*linears, mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        return None
    if "bias" in attention.o_proj or any("bias" in part for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        return None
    heads, kv_heads = attention.n_heads, attention.n_kv_heads
    queries, feed_forward = attention.q_proj.weight.shape[0], mlp.gate_proj.weight.shape[0]
    head_dim = queries // heads
    rope = attention.rope
    plain_rope = type(rope) is nn.RoPE or type(rope).__name__ == "Llama3RoPE"
    if not plain_rope or head_dim % 16 or not 32 <= head_dim <= 256 or feed_forward % 16:
        return None
    embedding = body.embed_tokens
    if not _packable(embedding) or not all(_packable(linear) for linear in _heads(model)):
        return None
    return Shape(
        hidden=body.norm.weight.shape[0],
        feed_forward=feed_forward,
        vocabulary=embedding.weight.shape[0],
        layers=len(layers),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=float(body.norm.eps),
    )


def build_decoder(model: nn.Module, shape: Shape, *, precision: str, threads: int, kv_budget: int) -> Any:
    """Pack `model` into a native decoder, taking its layers away one by one, so that the weights are there once.

    precision: `default`, `fast` or `exact`. kv_budget: bytes the KV cache may grow to. The model is unusable
    afterwards.
    """
    body = cast(Any, model).model
    rope = body.layers[0].self_attn.rope
    periods = getattr(rope, "_freqs", None)
    decoder = native.module().Decoder(
        hidden=shape.hidden,
        feed_forward=shape.feed_forward,
        vocabulary=shape.vocabulary,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        norm_eps=shape.norm_eps,
        rope_dims=int(rope.dims),
        rope_base=float(getattr(rope, "base", None) or 1.0),
        rope_scale=float(getattr(rope, "scale", None) or 1.0),
        rope_frequencies=None if periods is None else [1.0 / float(period) for period in periods.tolist()],
        rope_interleaved=bool(rope.traditional),
        precision=precision,
        threads=threads,
        kv_budget=kv_budget,
    )
    decoder.set_embedding(_matrix(body.embed_tokens))
    for head in _heads(model):
        decoder.set_head(_matrix(head))
    decoder.set_final_norm(_floats(body.norm.weight))
    while body.layers:
        _add_layer(decoder, body.layers.pop(0))
        mx.clear_cache()
    model.clear()
    mx.clear_cache()
    return decoder


def _add_layer(decoder: Any, layer: Any) -> None:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = [_floats(linear.bias) for linear in qkv if "bias" in linear]
    decoder.add_layer(
        qkv=[_matrix(linear) for linear in qkv],
        output=_matrix(attention.o_proj),
        gate_up=[_matrix(mlp.gate_proj), _matrix(mlp.up_proj)],
        down=_matrix(mlp.down_proj),
        input_norm=_floats(layer.input_layernorm.weight),
        output_norm=_floats(layer.post_attention_layernorm.weight),
        qkv_bias=np.concatenate(biases) if biases else None,
        q_norm=_floats(attention.q_norm.weight) if "q_norm" in attention else None,
        k_norm=_floats(attention.k_norm.weight) if "k_norm" in attention else None,
    )


def _heads(model: nn.Module) -> list[Any]:
    """The output head, when it is not the embedding's weights."""
    return [cast(Any, model).lm_head] if "lm_head" in model else []


def _packable(module: Any) -> bool:
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        return module.mode == "affine" and module.bits in (2, 3, 4, 5, 6, 8) and module.group_size in (32, 64, 128)
    return isinstance(module, nn.Linear | nn.Embedding)


def _matrix(module: Any) -> Any:
    """A module's weights as the native side reads them, without a copy."""
    matrix = native.module().Matrix
    if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
        biases = cast(mx.array, module.biases)  # `_packable`: affine, which always has them
        return matrix(_array(module.weight), _array(module.scales), _array(biases), module.bits, module.group_size)
    return matrix(_array(module.weight))


def _array(array: mx.array) -> npt.NDArray[Any]:
    """numpy has no bfloat16: its bits are handed over as uint16."""
    return np.ascontiguousarray(np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array))


def _floats(array: mx.array) -> npt.NDArray[np.float32]:
    return np.array(array.astype(mx.float32), dtype=np.float32)
