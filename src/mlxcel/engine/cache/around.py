"""A cache around one of mlx-lm's, of one sequence or of a batch."""

from __future__ import annotations

from typing import Any

import mlx.core as mx


class CacheAround:
    """Passes on what mlx-lm and the engine ask of a cache.

    inner: the cache that stores.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def offset(self) -> Any:
        """Position of the next token, or one for each row."""
        return self.inner.offset

    @property
    def keys(self) -> Any:
        """As they are stored; None before the first token."""
        return self.inner.keys

    @keys.setter
    def keys(self, stored: mx.array) -> None:
        self.inner.keys = stored

    @property
    def values(self) -> Any:
        """As they are stored; None before the first token."""
        return self.inner.values

    @values.setter
    def values(self, stored: mx.array) -> None:
        self.inner.values = stored

    @property
    def state(self) -> Any:
        """Arrays to evaluate."""
        return self.inner.state

    @property
    def nbytes(self) -> int:
        return self.inner.nbytes

    @property
    def mode(self) -> str | None:
        """What keys and values are stored as, for people; None: as the model computes them."""
        return getattr(self.inner, "mode", None)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store new keys and values; all that there are."""
        return self.inner.update_and_fetch(keys, values)

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All keys and values."""
        return self.inner.keys_and_values()

    def make_mask(self, *arguments: Any, **options: Any) -> Any:
        return self.inner.make_mask(*arguments, **options)

    def size(self) -> int:
        return self.inner.size()

    def empty(self) -> bool:
        return self.inner.empty()

    def is_trimmable(self) -> bool:
        return self.inner.is_trimmable()

    def trim(self, count: int) -> int:
        return self.inner.trim(count)

    def filter(self, rows: Any) -> None:
        """Keep only these rows of a batch."""
        self.inner.filter(rows)
