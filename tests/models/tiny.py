"""Tiny llama checkpoints with seeded random weights: the same model as a GGUF file and as a folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from tests.models import gguf_writer
from tests.models.gguf_writer import Tensor

MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "Ġ t", "Ġt he", "1 2", "12 3", "Ġ Ġ"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
TENSOR_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def vocabulary() -> list[str]:
    return SPECIAL + byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]


def weights(config: Mapping[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names of a Hugging Face checkpoint."""
    rng = np.random.default_rng(seed)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(vocabulary()), hidden)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (len(vocabulary()), hidden)
    for layer in range(config["num_hidden_layers"]):
        front = f"model.layers.{layer}"
        for module, rows, columns in (
            ("self_attn.q_proj", queries, hidden),
            ("self_attn.k_proj", keys, hidden),
            ("self_attn.v_proj", keys, hidden),
            ("self_attn.o_proj", hidden, queries),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            shapes[f"{front}.{module}.weight"] = (rows, columns)
            if config.get("attention_bias") and module.startswith("self_attn"):
                shapes[f"{front}.{module}.bias"] = (rows,)
        shapes[f"{front}.input_layernorm.weight"] = (hidden,)
        shapes[f"{front}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    return {
        name: (rng.standard_normal(shape) * 0.2 + ("norm" in name)).astype(np.float32) for name, shape in shapes.items()
    }


def tokenizer_metadata() -> dict[str, Any]:
    tokens = vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if token in SPECIAL else 1 for token in tokens], np.int32),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ messages[0].content }}",
    }


def gguf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.key_length": config["head_dim"],
        "llama.attention.value_length": config["head_dim"],
        "llama.rope.dimension_count": config["head_dim"],
        "llama.rope.freq_base": config["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        **tokenizer_metadata(),
    }


def gguf_tensors(
    config: Mapping[str, Any], arrays: Mapping[str, np.ndarray], kind_of: Callable[[str], str] = lambda _: "F32"
) -> list[Tensor]:
    """The tensors of a GGUF file as llama.cpp writes them; `kind_of` picks the type of a matrix by its GGUF name."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors: list[Tensor] = []
    for name, values in arrays.items():
        module, _, parameter = name.rpartition(".")
        count = heads.get(module.rpartition(".")[2])
        if count:
            split = values.reshape(count, 2, -1, *values.shape[1:])
            values = split.swapaxes(1, 2).reshape(values.shape)
        target = _gguf_name(module, parameter)
        tensors.append(gguf_writer.encode(target, kind_of(target) if values.ndim == 2 else "F32", values))
    return tensors


def _gguf_name(module: str, parameter: str) -> str:
    outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    if module in outer:
        return f"{outer[module]}.{parameter}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{TENSOR_NAMES[inner]}.{parameter}"


def write_gguf(path: Path, config: Mapping[str, Any] = CONFIG, *, kind: str = "F32", **metadata: Any) -> Path:
    """A GGUF file of the tiny model with all matrices of one type. metadata: keys with `__` for the dots."""
    extra = {key.replace("__", "."): value for key, value in metadata.items()}
    tensors = gguf_tensors(config, weights(config), lambda _: kind)
    path.write_bytes(gguf_writer.gguf({**gguf_metadata(config), **extra}, tensors))
    return path


def write_tokenizer(folder: Path) -> None:
    backend = Tokenizer(
        BPE({token: i for i, token in enumerate(vocabulary())}, [tuple(merge.split(" ")) for merge in MERGES])
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.save(str(folder / "tokenizer.json"))


def write_folder(
    folder: Path,
    config: Mapping[str, Any] = CONFIG,
    *,
    arrays: Mapping[str, np.ndarray] | None = None,
    dtype: mx.Dtype = mx.float32,
    file_name: str = "model.safetensors",
) -> Path:
    """A checkpoint folder of the tiny model."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = weights(config) if arrays is None else arrays
    tensors = {name: mx.array(values).astype(dtype) for name, values in arrays.items()}
    mx.save_safetensors(str(folder / file_name), tensors)
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": len(vocabulary())}))
    write_tokenizer(folder)
    return folder
