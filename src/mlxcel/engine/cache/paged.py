"""Sequences in the blocks of a native KV cache: they share what they have in common, and copy what they write."""

from __future__ import annotations

from typing import Any

from mlxcel.engine.cache.retention import SINK, Retention
from mlxcel.engine.cache.storage import KvMemory, Reuse, SavedState


class PagedStorage:
    """Implements `KvStorage`.

    native: has the sequences, as `mlxcel._kernels.Decoder` and `mlxcel._mlx_kernels.PagedCache` do. block: positions in
    one of its blocks. retention: what is kept of a sequence; None: all.
    """

    reuse = Reuse.BEGINNING
    mode = "bf16"

    def __init__(self, native: Any, block: int, retention: Retention | None = None) -> None:
        self._native = native
        self._block = block
        self._retention = retention
        self._numbers: dict[int, int] = {}  # by key

    @property
    def block_bytes(self) -> int:
        return self._native.block_bytes

    @property
    def memory(self) -> KvMemory:
        return KvMemory(self._native.used_blocks * self.block_bytes, self._native.capacity_blocks * self.block_bytes)

    def number(self, key: int) -> int:
        """What the native cache calls a sequence; a new one is opened."""
        if key not in self._numbers:
            self._numbers[key] = self._native.open()
        return self._numbers[key]

    def length(self, key: int) -> int:
        if key not in self._numbers:
            return 0
        number = self._numbers[key]
        length = self._native.length(number)
        return length if self._native.position(number) == length else 0

    def growth(self, key: int, tokens: int) -> int:
        if key not in self._numbers:
            return -(-self._kept(tokens) // self._block) * self.block_bytes
        number = self._numbers[key]
        length = self._native.length(number)
        return self._native.missing_blocks(number, self._kept(length + tokens) - length) * self.block_bytes

    def forget(self, key: int) -> None:
        """Make room for the next token of a sequence that has as many as are kept."""
        if self._retention is not None and self._native.length(self.number(key)) >= self._retention.most:
            self._native.forget(self.number(key), SINK, self._retention.step)

    def discard(self, key: int) -> None:
        if key in self._numbers:
            self._native.close(self._numbers.pop(key))

    def reset(self) -> None:
        """Drop all sequences."""
        for key in list(self._numbers):
            self.discard(key)

    def save(self, key: int, length: int) -> SavedState:
        number = self._native.fork(self._numbers[key], length)
        return SavedState(length, tuple(self._native.blocks(number)), 0, number)

    def adopt(self, key: int, state: SavedState, length: int) -> None:
        self._numbers[key] = self._native.fork(state.content, length)

    def freed_by_drop(self, state: SavedState) -> int:
        return self._native.exclusive_blocks(state.content) * self.block_bytes

    def drop(self, state: SavedState) -> None:
        self._native.close(state.content)

    def _kept(self, tokens: int) -> int:
        return tokens if self._retention is None else min(tokens, self._retention.most)
