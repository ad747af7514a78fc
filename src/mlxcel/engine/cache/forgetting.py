"""mlx-lm's plain caches with the gift of forgetting: tokens between the first ones and the latest can go, and positions
count on as if they were there."""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from mlxcel.engine.cache.around import CacheAround

_ABLE = frozenset({"KVCache", "QuantisedCache"})
"""Caches that can forget, of those that grow."""


class ForgettingCache(CacheAround):
    """Stands where mlx-lm has a `KVCache` (`forgotten` is a number), or a batch of them (one for each row).

    inner: knows only what is still there. Keys were turned by their places in the text before they came here, so they
    stay as they are.
    """

    def __init__(self, inner: Any, forgotten: int | Sequence[int] = 0) -> None:
        super().__init__(inner)
        self._rows = None if isinstance(forgotten, int) else list(forgotten)
        self._shift: Any = forgotten if self._rows is None else mx.array(self._rows)

    @property
    def offset(self) -> Any:
        """Position of the next token, or one for each row."""
        return self.inner.offset + self._shift

    def forget(self, rows: Sequence[int], first: int, count: int) -> None:
        """In these rows, or in the only one, let `count` tokens after the first `first` go."""
        if self._rows is None:
            _cut(self.inner, first, count)
            self._shift += count
            return
        alone = [self.inner.extract(row) for row in range(len(self._rows))]
        for row in rows:
            _cut(alone[row], first, count)
            self._rows[row] += count
        self.inner = alone[0].merge(alone)
        self._shift = mx.array(self._rows)

    def merge(self, caches: Sequence[ForgettingCache]) -> ForgettingCache:
        """A batch with a row for each of `caches`."""
        return ForgettingCache(self.inner.merge([cache.inner for cache in caches]), [cache._shift for cache in caches])

    def extend(self, other: ForgettingCache) -> None:
        """Append the rows of another batch."""
        assert self._rows is not None
        assert other._rows is not None
        self.inner.extend(other.inner)
        self._rows += other._rows
        self._shift = mx.array(self._rows)

    def filter(self, rows: Any) -> None:
        """Keep only these rows of a batch."""
        assert self._rows is not None
        self.inner.filter(rows)
        self._rows = [self._rows[row] for row in rows]
        self._shift = mx.array(self._rows)

    def extract(self, row: int) -> ForgettingCache:
        """One row of a batch, alone."""
        assert self._rows is not None
        return ForgettingCache(self.inner.extract(row), self._rows[row])


def able_to_forget(cache: Any) -> Any:
    """A cache of one sequence that can forget, made of a new one; the same one when it is of another kind."""
    parts = getattr(cache, "caches", None)
    if parts is not None:
        cache.caches = tuple(able_to_forget(part) for part in parts)
        return cache
    return ForgettingCache(cache) if type(cache).__name__ in _ABLE else cache


def _cut(cache: Any, first: int, count: int) -> None:
    """Take tokens out of a cache of one sequence."""
    length = cache.offset

    def without(stored: mx.array) -> mx.array:
        return mx.concatenate([stored[..., :first, :], stored[..., first + count : length, :]], axis=-2)

    cache.keys, cache.values = without(cache.keys), without(cache.values)
    cache.trim(count)
