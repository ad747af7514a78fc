"""A model on MLX behind the `Backend` seam. Made and used on the worker thread only."""

# mlx's calls carry no or partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from mlxcel import kernels
from mlxcel.engine.backend import Logits, ModelInfo
from mlxcel.engine.cache.rows import RowCaches
from mlxcel.engine.cache.sizing import kv_limit
from mlxcel.engine.sampling.rows import Rows

CLEAR_INTERVAL = 256
"""Decode steps between two releases of MLX's freed buffers."""


class MlxBackend:
    """Implements `Backend` for an mlx-lm model.

    model: takes ids [rows, length] and `cache`, returns logits [rows, length, vocabulary].
    logit_rows: what works on rows of logits.
    """

    def __init__(
        self, model: nn.Module, info: ModelInfo, installed: kernels.Kernels, caches: RowCaches, logit_rows: Rows
    ) -> None:
        self._model = model
        self.logit_rows = logit_rows
        self.kv = caches
        limit = kv_limit(caches, info.context_window)
        self._info = dataclasses.replace(info, reuse=caches.reuse, kv_limit=limit, retention=caches.retention)
        self._kernels = installed
        self._steps = 0

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._info

    def prefill(self, key: int, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache of the sequence `key`."""
        layers = self.kv.of_row(key, len(tokens))
        with self._kernels.without_logits():
            self._model(mx.array([list(tokens)]), cache=layers)
        mx.eval([layer.state for layer in layers])  # the caches only: nobody reads these logits
        self.kv.commit()
        mx.clear_cache()

    def join(self, key: int) -> None:
        """Make the sequence `key` the last row of the decode batch."""
        self.kv.join(key)

    def decode(self, tokens: Sequence[int]) -> Logits:
        """One step of all rows; float32 [rows, vocabulary]."""
        logits = self._model(mx.array(list(tokens))[:, None], cache=self.kv.of_batch())[:, -1, :]
        logits = logits.astype(mx.float32)
        mx.eval(logits)
        self.kv.commit()
        self._steps += 1
        if self._steps % CLEAR_INTERVAL == 0:
            mx.clear_cache()
        return np.require(logits, requirements=("C", "W"))  # a copy only if it must be

    def leave(self, keep: Sequence[int]) -> None:
        """Keep only the rows at these positions."""
        self.kv.keep(keep)

    def reset(self) -> None:
        """Drop all sequences."""
        self.kv.reset()
        mx.clear_cache()
