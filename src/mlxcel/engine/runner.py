"""A model on MLX behind the `Backend` seam. Made and used on the worker thread only."""

# mlx's calls carry no or partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxcel import kernels
from mlxcel.config import ServerConfig
from mlxcel.engine.backend import Logits, ModelInfo
from mlxcel.engine.cache.batch import BatchCache, LayerCaches, can_batch
from mlxcel.models.device import select_device
from mlxcel.models.load import load_model
from mlxcel.models.mlxlm import make_prompt_cache

log = logging.getLogger(__name__)

CPU_BUFFER_CACHE = 64 << 20
"""Bytes of freed buffers MLX keeps for reuse on a CPU; its default is most of the memory."""

CLEAR_INTERVAL = 256
"""Decode steps between two releases of MLX's freed buffers."""


class MlxBackend:
    """Implements `Backend` for an mlx-lm model.

    model: takes ids [rows, length] and `cache`, returns logits [rows, length, vocabulary].
    """

    def __init__(self, model: nn.Module, info: ModelInfo, installed: kernels.Kernels) -> None:
        self._model = model
        self._info = info
        self._kernels = installed
        self._pending: dict[int, LayerCaches] = {}
        self._batch = BatchCache()
        self._steps = 0

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._info

    def prefill(self, key: int, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache of the sequence `key`."""
        cache = self._caches(key)
        with self._kernels.without_logits():
            self._model(mx.array([list(tokens)]), cache=cache)
        mx.eval([layer.state for layer in cache])  # the caches only: nobody reads these logits
        mx.clear_cache()

    def join(self, key: int) -> None:
        """Make the sequence `key` the last row of the decode batch."""
        self._batch.join(self._caches(key))
        del self._pending[key]

    def discard(self, key: int) -> None:
        """Forget a sequence that has not joined."""
        self._pending.pop(key, None)

    def decode(self, tokens: Sequence[int]) -> Logits:
        """One step of all rows; float32 [rows, vocabulary]."""
        logits = self._model(mx.array(list(tokens))[:, None], cache=self._batch.layers)[:, -1, :]
        logits = logits.astype(mx.float32)
        mx.eval(logits)
        self._steps += 1
        if self._steps % CLEAR_INTERVAL == 0:
            mx.clear_cache()
        return np.asarray(logits)

    def leave(self, keep: Sequence[int]) -> None:
        """Keep only the rows at these positions."""
        self._batch.keep(keep)

    def reset(self) -> None:
        """Drop all caches."""
        self._pending.clear()
        self._batch = BatchCache()
        mx.clear_cache()

    def warm_up(self) -> None:
        """Run one prefill and one step, so that the first request does not pay for what is set up lazily."""
        token = min(self._info.tokenizer.eos_token_ids, default=0)
        self.prefill(-1, [token])
        self.join(-1)
        self.decode([token])
        self.leave([])

    def _caches(self, key: int) -> LayerCaches:
        if key not in self._pending:
            self._pending[key] = make_prompt_cache(self._model)
        return self._pending[key]


def load_backend(path: Path, name: str, config: ServerConfig) -> MlxBackend:
    """Load the checkpoint at `path` and serve it as `name`. Raises ModelError.

    Call it on the thread that will use the backend.
    """
    device = select_device(config.model.device)
    if device == "cpu":
        mx.set_cache_limit(CPU_BUFFER_CACHE)
    loaded = load_model(path, progress=log.info)
    installed = kernels.install(loaded.model)
    info = ModelInfo(
        name=name,
        tokenizer=loaded.tokenizer,
        context_window=loaded.context_window,
        chat_template=loaded.chat_template,
        special_tokens=loaded.special_tokens,
        generation_defaults=loaded.generation_defaults,
        architecture=loaded.architecture,
        device=device,
        kernels=installed.description,
        weight_bytes=loaded.weight_bytes,
        can_batch=can_batch(make_prompt_cache(loaded.model)),
    )
    backend = MlxBackend(loaded.model, info, installed)
    if config.model.warmup:
        backend.warm_up()
    return backend
