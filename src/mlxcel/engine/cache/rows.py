"""The caches of a model's sequences: those still reading their prompts, and the rows of the decode batch.

Keys and values live in the native paged cache where the model and the device allow it, and in mlx-lm's own caches
elsewhere; a hybrid model has both, layer by layer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxcel.engine.cache.batch import BatchCache, LayerCaches, can_batch
from mlxcel.engine.cache.footprint import Footprint, parts
from mlxcel.engine.cache.forgetting import ForgettingCache
from mlxcel.engine.cache.paged import PagedStorage
from mlxcel.engine.cache.retention import SINK, Retention
from mlxcel.engine.cache.stock import compact, copied, reuse_of
from mlxcel.engine.cache.storage import KvMemory, Reuse, SavedState
from mlxcel.kernels.paged import BLOCK, PagedKv

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Content:
    """Of a saved state: the part in mlx-lm's caches, and the part in blocks."""

    stock: LayerCaches
    paged: SavedState | None


class RowCaches:
    """Implements `KvStorage`: makes, joins and drops the caches of sequences, and hands a model what it takes as
    `cache`.

    make: a fresh list of mlx-lm caches, one a layer. paged: takes the place of some of them. footprint: what the
    others take; nothing by default. budget: bytes for everything; None: no limit, but that of `paged`. retention: what
    is kept of a sequence; None: all. together: the model can run several of them at once.
    """

    def __init__(
        self,
        make: Callable[[], LayerCaches],
        paged: PagedKv | None = None,
        footprint: Footprint | None = None,
        budget: int | None = None,
        *,
        retention: Retention | None = None,
        together: bool = True,
    ) -> None:
        self._make = make
        self._paged = paged
        self._blocks = None if paged is None else PagedStorage(paged.cache, BLOCK, retention)
        self._footprint = footprint or Footprint()
        self._budget = budget
        self._pending: dict[int, LayerCaches] = {}  # by the keys of sequences that have not joined
        self._batch = BatchCache()
        self._rows: list[int] = []  # keys of the others
        self._lengths: dict[int, int] = {}  # tokens that were read
        self._forgotten: dict[int, int] = {}  # and how many of those are not there any more
        self._step: tuple[Sequence[int], int] = (), 0  # keys, and the tokens that each gets
        self._saved_bytes = 0
        stock = self._stock_part(make())
        self.retention = retention
        self.reuse: Reuse = reuse_of(stock)
        self.can_batch: bool = together and can_batch(stock)
        """Whether several sequences can share a decode step."""

    @property
    def mode(self) -> str:
        return self._footprint.mode if self._blocks is None else self._blocks.mode

    @property
    def block_bytes(self) -> int:
        return 0 if self._blocks is None else self._blocks.block_bytes

    @property
    def memory(self) -> KvMemory:
        used = self._saved_bytes + sum(self._footprint.bytes(self._stored(key)) for key in self._pending)
        used += self._batch_bytes(0)
        if self._blocks is None:
            return KvMemory(used, self._budget)
        blocks = self._blocks.memory
        return KvMemory(used + blocks.used, blocks.budget if self._budget is None else self._budget)

    def length(self, key: int) -> int:
        return 0 if key in self._forgotten else self._lengths.get(key, 0)

    def growth(self, key: int, tokens: int) -> int:
        stored = self._stored(key)
        after = stored + tokens if self.retention is None else min(stored + tokens, self.retention.most)
        blocks = 0 if self._blocks is None else self._blocks.growth(key, tokens)
        return self._footprint.bytes(after) - self._footprint.bytes(stored) + blocks

    def of_row(self, key: int, count: int) -> LayerCaches:
        """What a forward pass over the next `count` tokens of one sequence takes. Raises MemoryError."""
        self._forget_oldest(self._pending.get(key, []), [key])
        self._check(self.growth(key, count))
        self._begin([key], count)
        return self._with_paged(self._open(key))

    def of_batch(self) -> LayerCaches:
        """What a forward pass over the next token of each row takes. Raises MemoryError."""
        self._forget_oldest(self._batch.layers, self._rows)
        self._check(self._batch_bytes(1) - self._batch_bytes(0))
        self._begin(self._rows, 1)
        return self._with_paged(self._batch.layers)

    def commit(self) -> None:
        """The pass has been evaluated."""
        if self._paged is not None:
            self._paged.commit()
        keys, count = self._step
        for key in keys:
            self._lengths[key] += count

    def join(self, key: int) -> None:
        """Make a sequence the last row of the batch."""
        self._batch.join(self._open(key))
        del self._pending[key]
        self._rows.append(key)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only the rows at these positions, in this order."""
        self._batch.keep(rows)
        staying = [self._rows[index] for index in rows]
        for key in set(self._rows) - set(staying):
            self._forget(key)
        self._rows = staying

    def discard(self, key: int) -> None:
        if self._pending.pop(key, None) is not None:
            self._forget(key)

    def reset(self) -> None:
        """Drop all sequences."""
        self.keep([])
        for key in list(self._pending):
            self.discard(key)

    def save(self, key: int, length: int) -> SavedState | None:
        pending = self._pending.get(key)
        try:
            row = self._batch.extract(self._rows.index(key)) if pending is None else pending
            stock = copied(row, self._lengths[key] - length)
            own = compact(stock)
        except Exception as reason:  # a model's own kind of cache, which may not come apart or not be copied
            log.debug("the state of a sequence cannot be kept: %r", reason)
            return None
        self._saved_bytes += own
        paged = None if self._blocks is None else self._blocks.save(key, length)
        return SavedState(length, () if paged is None else paged.blocks, own, _Content(stock, paged))

    def adopt(self, key: int, state: SavedState, length: int) -> None:
        content: _Content = state.content
        self._pending[key] = copied(content.stock, state.length - length)
        self._lengths[key] = length
        if self._blocks is not None and content.paged is not None:
            self._blocks.adopt(key, content.paged, length)

    def freed_by_drop(self, state: SavedState) -> int:
        content: _Content = state.content
        blocks = 0 if self._blocks is None or content.paged is None else self._blocks.freed_by_drop(content.paged)
        return state.own_bytes + blocks

    def drop(self, state: SavedState) -> None:
        content: _Content = state.content
        self._saved_bytes -= state.own_bytes
        if self._blocks is not None and content.paged is not None:
            self._blocks.drop(content.paged)

    def _open(self, key: int) -> LayerCaches:
        if key not in self._pending:
            self._pending[key] = self._stock_part(self._make())
            self._lengths[key] = 0
        return self._pending[key]

    def _forget(self, key: int) -> None:
        self._lengths.pop(key)
        self._forgotten.pop(key, None)
        if self._blocks is not None:
            self._blocks.discard(key)

    def _stored(self, key: int) -> int:
        return self._lengths.get(key, 0) - self._forgotten.get(key, 0)

    def _forget_oldest(self, layers: LayerCaches, keys: Sequence[int]) -> None:
        """Make room for the next token of those of `keys`, the rows of `layers`, that have as many as are kept."""
        if self.retention is None:
            return
        full = [row for row, key in enumerate(keys) if self._stored(key) >= self.retention.most]
        for cache in parts(layers) if full else ():
            if isinstance(cache, ForgettingCache):
                cache.forget(full, SINK, self.retention.step)
        for row in full:
            self._forgotten[keys[row]] = self._forgotten.get(keys[row], 0) + self.retention.step
            if self._blocks is not None:
                self._blocks.forget(keys[row])

    def _begin(self, keys: Sequence[int], count: int) -> None:
        if self._paged is not None and self._blocks is not None:
            self._paged.begin([self._blocks.number(key) for key in keys], count)
        self._step = keys, count

    def _check(self, growth: int) -> None:
        # Blocks have a limit of their own.
        if self._budget is not None and growth and self.memory.used + growth > self._budget:
            raise MemoryError(f"no room for {growth} more bytes of keys and values")

    def _batch_bytes(self, more: int) -> int:
        """Of the rows, which mlx-lm pads to the longest one, with `more` tokens each."""
        longest = max((self._stored(key) for key in self._rows), default=0)
        return len(self._rows) * self._footprint.bytes(longest + more)

    def _stock_part(self, caches: LayerCaches) -> LayerCaches:
        paged = self._paged.layers if self._paged else {}
        return [cache for place, cache in enumerate(caches) if place not in paged]

    def _with_paged(self, stock: LayerCaches) -> LayerCaches:
        if not self._paged:
            return stock
        rest, layers = iter(stock), self._paged.layers
        return [layers[place] if place in layers else next(rest) for place in range(len(stock) + len(layers))]
