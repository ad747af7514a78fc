"""The decode batch's caches: one mlx-lm cache per layer, with rows that join and leave between steps.

mlx-lm gives every cache class that can be batched three operations: `merge` (make a batch of single-row caches),
`extend` (append another batch's rows) and `filter` (keep some rows). Keys of shorter rows are padded on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LayerCaches = list[Any]


def can_batch(row: LayerCaches) -> bool:
    """Whether all of a model's caches can share a batch."""
    return all(hasattr(cache, "merge") for cache in row)


class BatchCache:
    """Caches of the rows being decoded. With caches that cannot be batched it holds one row at most."""

    def __init__(self) -> None:
        self.layers: LayerCaches = []
        """What a model takes as `cache`, one entry a layer; empty without rows."""

    def join(self, row: LayerCaches) -> None:
        """Append a sequence's own caches as the last row."""
        if not can_batch(row):
            if self.layers:
                raise ValueError("these caches hold one sequence at a time")
            self.layers = row
            return
        merged = [cache.merge([cache]) for cache in row]
        if not self.layers:
            self.layers = merged
            return
        for ours, theirs in zip(self.layers, merged, strict=True):
            ours.extend(theirs)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only the rows at these positions, in this order."""
        if not rows:
            self.layers = []
            return
        for cache in self.layers:
            cache.filter(list(rows))

    def extract(self, row: int) -> LayerCaches:
        """The caches of one row alone. Raises whatever mlx-lm raises for caches that do not come apart."""
        if not can_batch(self.layers):
            return self.layers  # there is no other row
        return [cache.extract(row) for cache in self.layers]
