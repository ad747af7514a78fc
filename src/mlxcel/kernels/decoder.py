"""The native decoder: models of the common kind, packed from their MLX modules and run without a graph.

`families.py` says which mlx-lm models are of that kind. A model that has anything else about it keeps running on MLX.
"""

# mlx.nn's layers carry no annotations, so their attributes are unknown to the type checker here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import reduce
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxcel import heap
from mlxcel.kernels import native, parts
from mlxcel.kernels.families import FAMILIES, WRAPPERS, Family, Scales
from mlxcel.kernels.parts import Norm, Rope, Rows, UnsupportedError
from mlxcel.kernels.progress import PackingProgress, Report

log = logging.getLogger(__name__)

KV_BLOCK = 64
"""Positions in a block of the KV cache."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a decoder, and the rotary embeddings that its layers choose from."""

    hidden: int
    vocabulary: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ropes: tuple[Rope, ...]

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of the cache for KV_BLOCK positions of one sequence: keys and values in bfloat16."""
        return self.layers * self.kv_heads * 2 * KV_BLOCK * self.head_dim * 2


@dataclass(frozen=True, slots=True)
class _Layer:
    """What a layer consists of. Holds the modules, so that their weights are there as long as it is."""

    qkv: list[Rows]
    output: list[Rows]
    up: list[Rows]
    down: list[Rows]
    norms: dict[str, Norm | None]
    norm_width: int
    parallel: bool
    rope: Rope | None
    window: int
    scale: float
    heads: int
    kv_heads: int
    head_dim: int


def decoder_shape(model: nn.Module) -> Shape | None:
    """The shape of `model`, or None when the native decoder cannot run it."""
    try:
        return _shape(model)
    except (UnsupportedError, AttributeError, KeyError) as reason:
        log.debug("not for the native decoder: %s", reason)
        return None


def _shape(model: nn.Module) -> Shape:
    model, family, name = _family(model)
    body = _part(model, family.body)
    parts.check_children(model, (family.body, family.head))
    parts.check_children(body, (family.embedding, family.layers, family.final_norm))
    embedding = _part(body, family.embedding)
    parts.check_linear([Rows(embedding)])
    for head in _heads(model, family):
        parts.check_linear([Rows(head)])
    parts.norm(_part(body, family.final_norm))
    vocabulary, hidden = parts.shape_of(embedding)
    sizes: set[tuple[int, int, int]] = set()
    ropes: list[Rope] = []
    layers = _part(body, family.layers)
    for index, module in enumerate(layers):
        layer = _describe(model, family, name, module, index)
        sizes.add((layer.heads, layer.kv_heads, layer.head_dim))
        if layer.rope is not None and layer.rope not in ropes:
            ropes.append(layer.rope)
    if len(sizes) != 1:
        raise UnsupportedError("layers with different heads")
    heads, kv_heads, head_dim = sizes.pop()
    return Shape(hidden, vocabulary, len(layers), heads, kv_heads, head_dim, tuple(ropes))


def build_decoder(
    model: nn.Module,
    shape: Shape,
    *,
    precision: str,
    threads: int,
    kv_budget: int,
    progress: Report | None = None,
) -> Any:
    """Pack `model` into a native decoder, taking its parts away one by one, so that the weights are there once.

    precision: `default`, `fast` or `exact`. kv_budget: bytes the KV cache may grow to. progress: called with a few
    words every few seconds. The model is unusable afterwards.
    """
    outer = model
    model, family, name = _family(model)
    body = _part(model, family.body)
    scales = family.scales(model)
    ropes = [native.module().Rope(list(rope.frequencies), rope.magnitude) for rope in shape.ropes]
    decoder = native.module().Decoder(
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        ropes=ropes,
        embedding_scale=scales.embedding,
        logit_scale=scales.logits,
        logit_softcap=scales.logits_cap,
        precision=precision,
        threads=threads,
        kv_budget=kv_budget,
    )
    for head in _heads(model, family):
        decoder.set_head(parts.linear([Rows(head)]))
        del head
        model.pop(family.head)
    decoder.set_embedding(parts.matrix(Rows(body.pop(family.embedding))))
    decoder.set_final_norm(_native_norm(parts.norm(_part(body, family.final_norm))))
    layers, progressing = _part(body, family.layers), PackingProgress(progress, shape.layers)
    for index in range(shape.layers):
        # What the part before left behind: otherwise freed memory piles up to a second copy of the weights.
        mx.clear_cache()
        heap.return_free_memory()
        _add_layer(decoder, shape, family, scales, _describe(model, family, name, layers.pop(0), index))
        progressing.packed(index + 1)
    outer.clear()
    mx.clear_cache()
    heap.return_free_memory()
    return decoder


def _family(model: nn.Module) -> tuple[nn.Module, Family, str]:
    """The model of text, its family, and the mlx-lm module that its layers come from. Raises UnsupportedError."""
    name = parts.class_name(model).removesuffix(".Model")
    if name in WRAPPERS:
        parts.check_children(model, ("language_model",))
        model = cast(Any, model).language_model
        name = parts.class_name(model).removesuffix(".Model")
    if name not in FAMILIES:
        raise UnsupportedError(f"a {name}")
    return model, FAMILIES[name], FAMILIES[name].code or name


def _part(module: Any, path: str) -> Any:
    return reduce(getattr, path.split("."), module)


def _heads(model: Any, family: Family) -> list[Any]:
    """The output head, when it is not the embedding's weights."""
    tied = getattr(model.args, "tie_word_embeddings", False) or getattr(model, "tie_word_embeddings", False)
    return [model[family.head]] if family.head in model and not tied else []


def _describe(model: Any, family: Family, name: str, layer: Any, index: int) -> _Layer:
    """What `layer` consists of. Raises UnsupportedError when that is more than is known here."""
    attention, mlp = _part(layer, family.attention), _part(layer, family.mlp)
    for module in (layer, attention, mlp):
        if not parts.class_name(module).startswith(f"{name}."):
            raise UnsupportedError(f"a {parts.class_name(module)}")
    norm_names = (family.before_attention, family.after_attention, family.before_mlp, family.after_mlp)
    parts.check_children(layer, (family.attention.partition(".")[0], family.mlp, *norm_names))
    parts.check_children(attention, (*family.qkv, family.output, "rope", family.q_norm, family.k_norm))
    parts.check_children(mlp, (*family.up, family.down))

    heads = _first(attention, "n_heads", "num_heads", "num_attention_heads")
    kv_heads = _first(attention, "n_kv_heads", "num_key_value_heads")
    output = [Rows(_part(attention, family.output))]
    head_dim = parts.shape_of(output[0].module)[1] // heads
    if head_dim % 16 or not 32 <= head_dim <= 256:
        raise UnsupportedError(f"heads of {head_dim} elements")
    up, down = _up(family, mlp), [Rows(_part(mlp, family.down))]
    if parts.shape_of(down[0].module)[1] % 16:
        raise UnsupportedError(f"a feed-forward part of {parts.shape_of(down[0].module)[1]} elements")
    qkv = _qkv(family, attention, heads // kv_heads, head_dim)
    for rows in (qkv, output, up, down):
        parts.check_linear(rows)
    parallel = family.parallel(layer)
    before_mlp = family.before_attention if parallel else family.before_mlp
    norms = {
        "before_attention": _norm(layer, family.before_attention),
        "after_attention": _norm(layer, family.after_attention),
        "before_mlp": _norm(layer, before_mlp),
        "after_mlp": _norm(layer, family.after_mlp),
    }
    width = 0
    for role, module_name in (("q_norm", family.q_norm), ("k_norm", family.k_norm)):
        norms[role], width = _head_norm(family, attention, module_name, head_dim)
    return _Layer(
        qkv=qkv,
        output=output,
        up=up,
        down=down,
        norms=norms,
        norm_width=width,
        parallel=parallel,
        rope=parts.rope(attention.rope) if family.turns(attention) else None,
        window=family.window(model, layer, index) or 0,
        scale=float(getattr(attention, "scale", head_dim**-0.5)),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def _first(module: Any, *names: str) -> int:
    return int(next(getattr(module, name) for name in names if hasattr(module, name)))


def _norm(layer: Any, name: str) -> Norm | None:
    return parts.norm(_part(layer, name)) if name else None


def _head_norm(family: Family, attention: Any, name: str, head_dim: int) -> tuple[Norm | None, int]:
    """The norm of queries or keys, and its width: 0 for one head, -1 for all of them."""
    if name not in attention:
        return None, 0
    own = parts.norm_by_head(attention[name])
    if own is not None:
        return own, head_dim
    return parts.norm(attention[name]), -1 if family.norm_of_all_heads else 0


def _qkv(family: Family, attention: Any, group: int, head_dim: int) -> list[Rows]:
    modules = [_part(attention, name) for name in family.qkv]
    if not family.qkv_by_head:
        return [Rows(module) for module in modules]
    places = np.arange(parts.shape_of(modules[0])[0]).reshape(-1, group + 2, head_dim)
    order = [places[:, :group], places[:, group], places[:, group + 1]]
    return [Rows(modules[0], np.concatenate([part.reshape(-1) for part in order]))]


def _up(family: Family, mlp: Any) -> list[Rows]:
    modules = [_part(mlp, name) for name in family.up]
    if not family.gated or len(modules) == 2:
        return [Rows(module) for module in modules]
    half = parts.shape_of(modules[0])[0] // 2
    return [Rows(modules[0], slice(0, half)), Rows(modules[0], slice(half, 2 * half))]


def _native_norm(norm: Norm | None) -> Any:
    return None if norm is None else native.module().Norm(norm.kind, norm.eps, norm.weight, norm.bias)


def _add_layer(decoder: Any, shape: Shape, family: Family, scales: Scales, layer: _Layer) -> None:
    decoder.add_layer(
        qkv=parts.linear(layer.qkv),
        output=parts.linear(layer.output),
        up=parts.linear(layer.up),
        down=parts.linear(layer.down),
        gated=family.gated,
        parallel=layer.parallel,
        activation=family.activation,
        residual_scale=scales.residual,
        **{role: _native_norm(norm) for role, norm in layer.norms.items()},
        norm_width=layer.norm_width,
        rope=-1 if layer.rope is None else shape.ropes.index(layer.rope),
        rope_interleaved=layer.rope is not None and layer.rope.interleaved,
        scale=layer.scale,
        window=layer.window,
        softcap=scales.scores_cap,
    )
