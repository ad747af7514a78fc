"""A model on MLX behind the `Backend` seam. Made and used on the worker thread only."""

# mlx's calls carry no or partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxcel import kernels
from mlxcel.engine.backend import Logits, ModelInfo
from mlxcel.engine.cache.batch import BatchCache, LayerCaches
from mlxcel.models.mlxlm import make_prompt_cache

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

    def _caches(self, key: int) -> LayerCaches:
        if key not in self._pending:
            self._pending[key] = make_prompt_cache(self._model)
        return self._pending[key]
