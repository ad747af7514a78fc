"""The native decoder behind the `Backend` seam: no graph, no copies, one call a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlxcel.engine.backend import Logits, ModelInfo


class NativeBackend:
    """Implements `Backend` for a decoder made by `mlxcel.kernels.decoder.build_decoder`."""

    def __init__(self, decoder: Any, info: ModelInfo, vocabulary: int) -> None:
        self._decoder = decoder
        self._info = info
        self._pending: dict[int, int] = {}  # key of a sequence that has not joined, to the decoder's number
        self._rows: list[int] = []
        self._logits = np.empty((0, vocabulary), np.float32)

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._info

    def prefill(self, key: int, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache of the sequence `key`."""
        pieces = [(self._sequence(key), len(tokens))]
        self._decoder.step(np.asarray(tokens, np.int32), pieces, None)

    def join(self, key: int) -> None:
        """Make the sequence `key` the last row of the decode batch."""
        self._rows.append(self._sequence(key))
        del self._pending[key]

    def discard(self, key: int) -> None:
        """Forget a sequence that has not joined."""
        if key in self._pending:
            self._decoder.close(self._pending.pop(key))

    def decode(self, tokens: Sequence[int]) -> Logits:
        """One step of all rows; float32 [rows, vocabulary], valid until the next call."""
        rows = len(self._rows)
        if self._logits.shape[0] < rows:
            self._logits = np.empty((rows, self._logits.shape[1]), np.float32)
        logits = self._logits[:rows]
        self._decoder.step(np.asarray(tokens, np.int32), [(row, 1) for row in self._rows], logits)
        return logits

    def leave(self, keep: Sequence[int]) -> None:
        """Keep only the rows at these positions."""
        staying = [self._rows[index] for index in keep]
        for row in self._rows:
            if row not in staying:
                self._decoder.close(row)
        self._rows = staying

    def reset(self) -> None:
        """Drop all caches."""
        self.leave([])
        for key in list(self._pending):
            self.discard(key)

    def _sequence(self, key: int) -> int:
        if key not in self._pending:
            self._pending[key] = self._decoder.open()
        return self._pending[key]
