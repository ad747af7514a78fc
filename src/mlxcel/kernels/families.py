"""The mlx-lm models that the native decoder runs: where their parts are and what their code does with them.

A row of `FAMILIES` is read off a model's source in mlx-lm: the names of its modules, and the choices that no module
shows, such as an activation or a multiplier. What the modules themselves show is read from them (`parts.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import mlx.core as mx

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scales:
    """Numbers that a model multiplies with or caps at; a cap of 0 is none."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    logits_cap: float = 0.0
    scores_cap: float = 0.0


def _no_scales(_model: Any) -> Scales:
    return Scales()


def _no_window(_model: Any, _layer: Any, _index: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Family:
    """The models of one mlx-lm module. Names are attributes; a path has dots."""

    code: str = ""
    """The module that the classes of layers come from, when it is not the model's own."""
    body: str = "model"
    embedding: str = "embed_tokens"
    layers: str = "layers"
    final_norm: str = "norm"
    head: str = "lm_head"
    attention: str = "self_attn"
    qkv: Names = ("q_proj", "k_proj", "v_proj")
    """One module or three; one alone has queries, keys and values one below the other."""
    qkv_by_head: bool = False
    """One module has, for each KV head, its queries, its key and its value."""
    output: str = "o_proj"
    q_norm: str = "q_norm"
    k_norm: str = "k_norm"
    norm_of_all_heads: bool = False
    mlp: str = "mlp"
    up: Names = ("gate_proj", "up_proj")
    """Gate and up; one module alone has both, one below the other, or is ungated."""
    down: str = "down_proj"
    gated: bool = True
    activation: str = "silu"
    before_attention: str = "input_layernorm"
    after_attention: str = ""
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = ""
    parallel: Callable[[Any], bool] = lambda _layer: False
    """Whether both branches of a layer start from `before_attention`."""
    window: Callable[[Any, Any, int], int] = _no_window
    """Keys that a row of a layer sees; 0: all. Takes the model, the layer and its index."""
    turns: Callable[[Any], bool] = lambda _attention: True
    """Whether an attention uses its rotary embedding."""
    scales: Callable[[Any], Scales] = _no_scales


def _gemma(model: Any) -> Scales:
    return Scales(embedding=model.args.hidden_size**0.5)


def _gemma2(model: Any) -> Scales:
    return Scales(
        embedding=model.args.hidden_size**0.5,
        logits_cap=model.final_logit_softcapping,
        scores_cap=model.args.attn_logit_softcapping,
    )


def _gemma3(model: Any) -> Scales:
    return Scales(embedding=cast(float, mx.array(model.args.hidden_size**0.5, mx.bfloat16).item()))


def _granite(model: Any) -> Scales:
    args = model.args
    return Scales(args.embedding_multiplier, args.residual_multiplier, 1.0 / model.logits_scaling)


def _minicpm(model: Any) -> Scales:
    args = model.args
    logits = 1.0 if args.tie_word_embeddings else args.dim_model_base / args.hidden_size
    return Scales(args.scale_emb, args.scale_depth / args.num_hidden_layers**0.5, logits)


def _cohere(model: Any) -> Scales:
    return Scales(logits=model.args.logit_scale)


def _llama_window(model: Any, layer: Any, _index: int) -> int:
    return model.model.sliding_window if layer.use_sliding else 0


def _cohere2_window(model: Any, layer: Any, _index: int) -> int:
    return model.args.sliding_window if layer.self_attn.use_sliding_window else 0


def _exaone4_window(model: Any, layer: Any, _index: int) -> int:
    return model.model.window_size if layer.self_attn.is_local else 0


def _gemma3_window(model: Any, layer: Any, _index: int) -> int:
    return model.args.sliding_window if layer.self_attn.is_sliding else 0


def _olmo3_window(model: Any, _layer: Any, index: int) -> int:
    return 0 if model.args.layer_types[index] == "full_attention" else model.args.sliding_window


def _turns_in_windows(attention: Any) -> bool:
    return attention.use_sliding_window


def _turns_if_told(attention: Any) -> bool:
    return attention.use_rope


def _always(_layer: Any) -> bool:
    return True


def _if_told(layer: Any) -> bool:
    return layer.use_parallel_residual


_SANDWICH = Family(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_NORMS_AFTER = Family(
    before_attention="",
    after_attention="post_attention_layernorm",
    before_mlp="",
    after_mlp="post_feedforward_layernorm",
)
_COHERE = Family(before_mlp="input_layernorm", parallel=_always, scales=_cohere)

FAMILIES: dict[str, Family] = {
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        window=_cohere2_window,
        turns=_turns_in_windows,
    ),
    "ernie4_5": Family(),
    "exaone": Family(
        body="transformer",
        embedding="wte",
        layers="h",
        final_norm="ln_f",
        attention="attn.attention",
        output="out_proj",
        up=("c_fc_0", "c_fc_1"),
        down="c_proj",
        before_attention="ln_1",
        before_mlp="ln_2",
    ),
    "exaone4": replace(
        _NORMS_AFTER,
        window=_exaone4_window,
        turns=_turns_if_told,
    ),
    "gemma": Family(activation="gelu", scales=_gemma),
    "gemma2": replace(_SANDWICH, activation="gelu_tanh", scales=_gemma2),
    "gemma3_text": replace(
        _SANDWICH,
        activation="gelu_tanh",
        scales=_gemma3,
        window=_gemma3_window,
    ),
    "glm": Family(up=("gate_up_proj",)),
    "glm4": Family(
        up=("gate_up_proj",),
        after_attention="post_self_attn_layernorm",
        after_mlp="post_mlp_layernorm",
    ),
    "granite": Family(scales=_granite),
    "helium": Family(),
    "internlm2": Family(
        embedding="tok_embeddings",
        head="output",
        attention="attention",
        qkv=("wqkv",),
        qkv_by_head=True,
        output="wo",
        mlp="feed_forward",
        up=("w1", "w3"),
        down="w2",
        before_attention="attention_norm",
        before_mlp="ffn_norm",
    ),
    "internlm3": Family(),
    "llama": Family(window=_llama_window),
    "mimo": Family(),
    "minicpm": Family(scales=_minicpm),
    "nemotron": Family(up=("up_proj",), gated=False, activation="relu2"),
    "olmo2": replace(_NORMS_AFTER, norm_of_all_heads=True),
    "olmo3": replace(
        _NORMS_AFTER,
        norm_of_all_heads=True,
        window=_olmo3_window,
    ),
    "phi": Family(
        final_norm="final_layernorm",
        output="dense",
        up=("fc1",),
        down="fc2",
        gated=False,
        activation="gelu_tanh",
        before_mlp="input_layernorm",
        parallel=_always,
    ),
    "phi3": Family(qkv=("qkv_proj",), up=("gate_up_proj",)),
    "qwen2": Family(),
    "qwen3": Family(),
    "seed_oss": Family(),
    "smollm3": Family(code="llama", window=_llama_window),
    "stablelm": Family(
        q_norm="q_layernorm",
        k_norm="k_layernorm",
        parallel=_if_told,
    ),
    "starcoder2": Family(up=("c_fc",), down="c_proj", gated=False, activation="gelu"),
}

WRAPPERS = frozenset({"gemma3", "mistral3", "pixtral", "qwen2_vl", "qwen3_vl"})
"""Models that hand text to the `language_model` they hold."""
