"""The native decoder without engine and server, and the models it is measured with."""

# mlx.nn's layers carry no annotations, so their attributes are unknown to the type checker here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxcel.kernels.decoder import KV_BLOCK, Shape, build_decoder, decoder_shape
from mlxcel.models.mlxlm import model_classes

PIECE = 512
"""Tokens of a prompt that one step takes."""

LLAMA_1B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
"""The sizes of Llama 3.2 1B."""


class NativeDecoder:
    """Some sequences under a model packed for the native kernels. Takes the model's weights away from it."""

    def __init__(self, model: nn.Module, *, precision: str, threads: int, rows: int, context: int) -> None:
        shape = decoder_shape(model)
        if shape is None:
            raise ValueError("the native decoder cannot run this model")
        self.shape: Shape = shape
        budget = rows * (math.ceil(context / KV_BLOCK) + 1) * shape.kv_block_bytes
        self._decoder = build_decoder(model, shape, precision=precision, threads=threads, kv_budget=budget)
        self._sequences: list[int] = []
        self._logits = np.empty((rows, shape.vocabulary), np.float32)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights."""
        return self._decoder.weight_bytes

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """One sequence for each prompt, holding that prompt; nothing else stays."""
        self._open(len(prompts))
        for sequence, prompt in zip(self._sequences, prompts, strict=True):
            self._append(sequence, prompt)

    def prefill(self, prompt: Sequence[int]) -> int:
        """Drop everything, run `prompt` through the model; returns the best next token."""
        self._open(1)
        self._append(self._sequences[0], prompt, self._logits[:1])
        return int(self._logits[0].argmax())

    def extend(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the first sequence, in one step."""
        self._decoder.step(np.asarray(tokens, np.int32), [(self._sequences[0], len(tokens))], None)

    def step(self, tokens: Sequence[int]) -> list[int]:
        """Append one token to each sequence; returns the best next token of each."""
        logits = self._logits[: len(tokens)]
        pieces = [(sequence, 1) for sequence in self._sequences]
        self._decoder.step(np.asarray(tokens, np.int32), pieces, logits)
        return [int(row.argmax()) for row in logits]

    def _open(self, count: int) -> None:
        for sequence in self._sequences:
            self._decoder.close(sequence)
        self._sequences = [self._decoder.open() for _ in range(count)]

    def _append(self, sequence: int, prompt: Sequence[int], logits: Any = None) -> None:
        for start in range(0, len(prompt), PIECE):
            piece = np.asarray(prompt[start : start + PIECE], np.int32)
            last = start + PIECE >= len(prompt)
            self._decoder.step(piece, [(sequence, len(piece))], logits if last else None)


def random_model(config: dict[str, Any], *, bits: int = 4, group: int = 64) -> nn.Module:
    """A model of this configuration with random quantised weights, which never exist in another form."""
    model_class, args_class = model_classes(config["model_type"])
    model = model_class(args_class.from_dict(config))
    nn.quantize(model, group_size=group, bits=bits)  # not evaluated: only the shapes are used
    rng = np.random.default_rng(7)
    for module in model.modules():
        if isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding):
            rows, columns = module.weight.shape[0], module.weight.shape[1] * 32 // bits
            module.weight = mx.array(rng.integers(0, 1 << 32, module.weight.shape, np.uint32))
            # Of such a size that what comes out is as large as what goes in.
            scale = 1.0 / ((1 << bits) * math.sqrt(columns / 12))
            module.scales = mx.full((rows, columns // group), scale, mx.float16)
            module.biases = module.scales * (-((1 << bits) - 1) / 2)
            mx.eval(module.parameters())
        elif isinstance(module, nn.RMSNorm):
            mx.eval(module.parameters())
    return model
