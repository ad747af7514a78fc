"""Tiny models of every family that the native decoder runs, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map_with_path

from mlxcel.models.mlxlm import model_classes

VOCABULARY = 96
COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 3,
    "num_layers": 3,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "norm_epsilon": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "partial_rotary_factor": 0.5,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
WINDOWS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 20}
GRANITE = {
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.5,
    "tie_word_embeddings": True,
}
GEMMA3 = {"sliding_window": 24, "sliding_window_pattern": 2, "query_pre_attn_scalar": 40.0}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0 + i / 4 for i in range(8)]}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
EXAONE4 = {"rope_scaling": LLAMA3, "sliding_window": None, "sliding_window_pattern": None}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cohere": ("cohere", {"logit_scale": 0.3}),
    "cohere, norms of heads": ("cohere", {"use_qk_norm": True, "layer_norm_bias": True, **BIASES}),
    "cohere2": ("cohere2", {"sliding_window": 20, "sliding_window_pattern": 2}),
    "ernie4_5": ("ernie4_5", {"use_bias": True}),
    "exaone": ("exaone", BIASES),
    "exaone4": ("exaone4", EXAONE4),
    "exaone4, windows": ("exaone4", {**EXAONE4, "sliding_window": 20, "sliding_window_pattern": "LG"}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("gemma3", {"text_config": {**COMMON, "model_type": "gemma3_text", **GEMMA3}}),
    "gemma3_text": ("gemma3_text", {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "glm": ("glm", {"attention_bias": True}),
    "glm4": ("glm4", {"attention_bias": True}),
    "granite": ("granite", GRANITE),
    "granite, biases": ("granite", {**GRANITE, **BIASES, "tie_word_embeddings": False}),
    "helium": ("helium", {"tie_word_embeddings": True}),
    "internlm2": ("internlm2", {"bias": True}),
    "internlm3": ("internlm3", {"bias": True, "qkv_bias": True}),
    "llama": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", BIASES),
    "llama, frequencies scaled": ("llama", {"rope_scaling": LLAMA3}),
    "llama, positions scaled": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama, pairs side by side": ("llama", {"rope_traditional": True}),
    "llama, yarn": ("llama", {"rope_scaling": YARN}),
    "llama, some of each head": (
        "llama",
        {"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0}},
    ),
    "mistral": ("mistral", WINDOWS),
    "mistral3": ("mistral3", {"text_config": {**COMMON, "model_type": "mistral"}}),
    "mimo": ("mimo", {}),
    "minicpm": ("minicpm", {"dim_model_base": 64, "scale_depth": 1.4, "scale_emb": 5.0}),
    "nemotron": ("nemotron", {"hidden_act": "relu2", **BIASES}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {**WINDOWS, "rope_scaling": YARN}),
    "phi": ("phi", {}),
    "phi3": ("phi3", {}),
    "phi3, long positions": ("phi3", {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "qwen3_vl": ("qwen3_vl", {"text_config": {**COMMON, "model_type": "qwen3"}}),
    "seed_oss": ("seed_oss", {"attention_bias": True, "attention_out_bias": True, "mlp_bias": True}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "stablelm": ("stablelm", {"use_qkv_bias": True}),
    "stablelm, parallel": ("stablelm", {"use_qkv_bias": False, "use_parallel_residual": True, "qk_layernorm": True}),
    "starcoder2": ("starcoder2", {"tie_word_embeddings": True}),
}


def _four_bits(path: str, module: nn.Module) -> bool | dict[str, int]:
    return hasattr(module, "to_quantized")


def _mixed_bits(path: str, module: nn.Module) -> bool | dict[str, int]:
    """Some matrices in other bits, some in other groups; those that are one product in the same groups."""
    name = path.rpartition(".")[2]
    if not hasattr(module, "to_quantized"):
        return False
    bits = {"v_proj": 6, "down_proj": 8, "embed_tokens": 8, "up_proj": 3, "lm_head": 5}.get(name, 4)
    return {"bits": bits, "group_size": 32 if name in ("down_proj", "o_proj") else 64}


QUANTISED: dict[str, Callable[[str, nn.Module], bool | dict[str, int]]] = {
    "4 bits in 32": _four_bits,
    "mixed bits": _mixed_bits,
}


def make_model(name: str, weights: str) -> nn.Module:
    """The model `name` of MODELS. weights: a key of QUANTISED, or the name of a floating-point type."""
    model_type, options = MODELS[name]
    mx.random.seed(7)
    model_class, args_class = model_classes({"mistral": "llama"}.get(model_type, model_type))
    config = {**COMMON, "model_type": model_type, **options}
    model = model_class(args_class.from_dict(config))

    def weight(path: str, array: mx.array) -> mx.array:
        if "norm" in path or "ln_" in path:
            return mx.random.normal(array.shape) * 0.3 + (0.5 if path.endswith("weight") else 0.0)
        return mx.random.normal(array.shape) * 0.1

    model.update(tree_map_with_path(weight, model.parameters()))
    if weights in QUANTISED:
        nn.quantize(model, bits=4, group_size=32, class_predicate=QUANTISED[weights])
    else:
        model.set_dtype(getattr(mx, weights))
    mx.eval(model.parameters())
    return model
