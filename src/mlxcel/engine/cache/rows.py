"""The caches of a model's sequences: those still reading their prompts, and the rows of the decode batch.

Keys and values live in the native paged cache where the model and the device allow it, and in mlx-lm's own caches
elsewhere; a hybrid model has both, layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxcel.engine.cache.batch import BatchCache, LayerCaches, can_batch
from mlxcel.kernels.paged import PagedKv


@dataclass(slots=True)
class Row:
    """One sequence."""

    stock: LayerCaches
    """Its mlx-lm caches, of the layers that are not paged."""
    sequence: int
    """Its number in the paged cache; -1 without one."""


class RowCaches:
    """Makes, joins and drops the caches of sequences, and hands a model what it takes as `cache`.

    make: a fresh list of mlx-lm caches, one a layer. paged: takes the place of some of them.
    """

    def __init__(self, make: Callable[[], LayerCaches], paged: PagedKv | None = None) -> None:
        self._make = make
        self._paged = paged
        self._batch = BatchCache()
        self._sequences: list[int] = []

    @property
    def can_batch(self) -> bool:
        """Whether several sequences can share a decode step."""
        return can_batch(self._stock_part(self._make()))

    def open(self) -> Row:
        """A new, empty sequence outside of the batch."""
        return Row(self._stock_part(self._make()), self._paged.open() if self._paged else -1)

    def close(self, row: Row) -> None:
        """Forget a sequence that has not joined."""
        if self._paged:
            self._paged.close(row.sequence)

    def of_row(self, row: Row, count: int) -> LayerCaches:
        """What a forward pass over the next `count` tokens of one sequence takes. Raises MemoryError."""
        if self._paged:
            self._paged.begin([row.sequence], count)
        return self._with_paged(row.stock)

    def of_batch(self) -> LayerCaches:
        """What a forward pass over the next token of each row takes. Raises MemoryError."""
        if self._paged:
            self._paged.begin(self._sequences, 1)
        return self._with_paged(self._batch.layers)

    def commit(self) -> None:
        """The pass has been evaluated."""
        if self._paged:
            self._paged.commit()

    def join(self, row: Row) -> None:
        """Make a sequence the last row of the batch."""
        self._batch.join(row.stock)
        self._sequences.append(row.sequence)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only the rows at these positions, in this order."""
        self._batch.keep(rows)
        staying = [self._sequences[index] for index in rows]
        if self._paged:
            for sequence in set(self._sequences) - set(staying):
                self._paged.close(sequence)
        self._sequences = staying

    def _stock_part(self, caches: LayerCaches) -> LayerCaches:
        paged = self._paged.layers if self._paged else {}
        return [cache for place, cache in enumerate(caches) if place not in paged]

    def _with_paged(self, stock: LayerCaches) -> LayerCaches:
        if not self._paged:
            return stock
        rest, layers = iter(stock), self._paged.layers
        return [layers[place] if place in layers else next(rest) for place in range(len(stock) + len(layers))]
