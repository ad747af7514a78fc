"""The native decoder behind the `Backend` seam: no graph, no copies, one call a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxcel.engine.backend import Logits, ModelInfo
from mlxcel.engine.cache.paged import PagedStorage
from mlxcel.engine.cache.retention import Retention
from mlxcel.engine.cache.sizing import kv_limit
from mlxcel.engine.sampling.rows import NativeRows, Rows
from mlxcel.kernels import native
from mlxcel.kernels.decoder import KV_BLOCK


class NativeBackend:
    """Implements `Backend` for a decoder made by `mlxcel.kernels.decoder.build_decoder`."""

    def __init__(self, decoder: Any, info: ModelInfo, vocabulary: int, retention: Retention | None = None) -> None:
        self.kv = PagedStorage(decoder, KV_BLOCK, retention)
        self.logit_rows: Rows = NativeRows(native.module(), decoder)
        self._decoder = decoder
        limit = kv_limit(self.kv, info.context_window)
        self._info = dataclasses.replace(info, reuse=self.kv.reuse, kv_limit=limit, retention=retention)
        self._rows: list[int] = []  # keys
        self._logits = np.empty((0, vocabulary), np.float32)

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._info

    def prefill(self, key: int, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache of the sequence `key`."""
        self.kv.forget(key)
        pieces = [(self.kv.number(key), len(tokens))]
        self._decoder.step(np.asarray(tokens, np.int32), pieces, None)

    def join(self, key: int) -> None:
        """Make the sequence `key` the last row of the decode batch."""
        self._rows.append(key)

    def decode(self, tokens: Sequence[int]) -> Logits:
        """One step of all rows; float32 [rows, vocabulary], valid until the next call."""
        rows = len(self._rows)
        if self._logits.shape[0] < rows:
            self._logits = np.empty((rows, self._logits.shape[1]), np.float32)
        logits = self._logits[:rows]
        for key in self._rows:
            self.kv.forget(key)
        pieces = [(self.kv.number(key), 1) for key in self._rows]
        self._decoder.step(np.asarray(tokens, np.int32), pieces, logits)
        return logits

    def leave(self, keep: Sequence[int]) -> None:
        """Keep only the rows at these positions."""
        staying = [self._rows[index] for index in keep]
        for key in self._rows:
            if key not in staying:
                self.kv.discard(key)
        self._rows = staying

    def reset(self) -> None:
        """Drop all sequences."""
        self._rows = []
        self.kv.reset()
