"""Small random models of many families, made by mlx-lm's own classes."""

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.utils

from mlxcel.models.mlxlm import model_classes

VOCABULARY = 160

_COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen3": {},
    "qwen3_moe": _EXPERTS,
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma3_text": {"sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 32},
    "gemma2": {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 32},
    "phi3": {"rope_scaling": None, "partial_rotary_factor": 1.0},
    "granite": {
        "logits_scaling": 4.0,
        "attention_multiplier": 0.1,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_bias": False,
        "mlp_bias": False,
    },
    "gpt_oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": None,
    },
    "mamba2": {
        "num_heads": 4,
        "head_dim": 32,
        "state_size": 16,
        "conv_kernel": 4,
        "n_groups": 1,
        "expand": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
        "ssm_state_size": 16,
        "time_step_min": 0.001,
        "time_step_max": 0.1,
    },
    "qwen3_next": {
        **_EXPERTS,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "shared_expert_intermediate_size": 64,
        "full_attention_interval": 2,
        "partial_rotary_factor": 0.5,
        "attention_bias": False,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_layer_freq": 1,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
        "kv_lora_rank": 64,
        "q_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "rope_scaling": None,
        "attention_bias": False,
    },
    "gemma3n": {
        "text_config": {
            **_COMMON,
            "model_type": "gemma3n_text",
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 32,
            "intermediate_size": [96] * 2,
            "num_kv_shared_layers": 0,
            "altup_num_inputs": 4,
            "altup_coef_clip": 120.0,
            "altup_correct_scale": True,
            "altup_active_idx": 0,
            "altup_lr_multiplier": 1.0,
            "laurel_rank": 32,
            "activation_sparsity_pattern": [0.95, 0.0],
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_local_base_freq": 10000.0,
            "final_logit_softcapping": 30.0,
            "sliding_window": 16,
            "query_pre_attn_scalar": 32,
        },
    },
    "lfm2": {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 128,
        "block_ff_dim": 96,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1],
        "layer_types": ["conv", "full_attention"],
    },
}


def random_model(
    family: str, *, seed: int = 0, bits: int | None = None, group: int = 32, vocabulary: int = VOCABULARY
) -> nn.Module:
    """A model of `family` with random parameters everywhere (norms and biases too), float32."""
    build, arguments = model_classes(family)
    config = _COMMON | {"model_type": family, "vocab_size": vocabulary} | CONFIGS[family]
    mx.random.seed(seed)
    model = build(arguments.from_dict(config))

    def randomised(path: str, array: mx.array) -> mx.array:
        if not mx.issubdtype(array.dtype, mx.floating):
            return array
        if array.ndim >= 2:
            scale = 0.5 if "embed" in path or "wte" in path else array.shape[-1] ** -0.5
            return mx.random.normal(array.shape) * scale
        if "norm" in path and "weight" in path:
            return 1.0 + 0.3 * mx.random.normal(array.shape)
        return array + 0.1 * mx.random.normal(array.shape)

    flat = mlx.utils.tree_flatten(cast(Any, model).parameters())
    model.update(mlx.utils.tree_unflatten([(path, randomised(path, array)) for path, array in flat]))
    if bits is not None:
        nn.quantize(model, group_size=group, bits=bits, class_predicate=lambda _, m: _quantisable(m, group))
    mx.eval(model.parameters())
    return model


def _quantisable(module: nn.Module, group: int) -> bool:
    return hasattr(module, "to_quantized") and cast(Any, module).weight.shape[-1] % group == 0
