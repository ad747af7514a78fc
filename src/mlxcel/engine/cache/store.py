"""Saved states within limits: the least recently used ones go first, and those that nobody used for long."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mlxcel.engine.cache.entry import Entry
from mlxcel.engine.cache.storage import KvStorage

log = logging.getLogger(__name__)

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a store may hold."""

    capacity: int
    """Bytes, a block that several entries share counted once."""
    entries: int
    ttl: float
    """Seconds an entry stays that nobody uses."""
    flag: str
    """The flag that sets `capacity`, for the log."""


class EntryStore:
    """Base of the two kinds of store, which say how entries are found.

    storage: what the states live in. clock: seconds, rising.
    """

    def __init__(self, storage: KvStorage, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.inserts = 0
        self.evictions_lru = 0
        self.evictions_ttl = 0
        self.rejections_oversized = 0
        self._storage = storage
        self._clock = clock
        self._entries: OrderedDict[Entry, None] = OrderedDict()  # the least recently used one first
        self._holders: Counter[int] = Counter()  # of each block
        self._own_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """What all entries take together."""
        return self._own_bytes + self._storage.block_bytes * len(self._holders)

    @property
    def expires_in(self) -> float | None:
        """Seconds until the first entry has been there for too long; None without entries."""
        if not self._entries:
            return None
        return max(0.0, next(iter(self._entries)).used_at + self.limits.ttl - self._clock())

    def touch(self, entry: Entry) -> None:
        """Note that an entry is in use."""
        entry.used_at = self._clock()
        self._entries.move_to_end(entry)

    def add(self, entry: Entry, replaced: Iterable[Entry] = ()) -> bool:
        """Take an entry in and the `replaced` ones out, and others as the limits ask.

        False when it is larger than all that may be held: then it is dropped, and nothing else happens.
        """
        size = entry.state.own_bytes + self._storage.block_bytes * len(entry.state.blocks)
        if size > self.limits.capacity:
            self._reject(size)
            self._storage.drop(entry.state)
            return False
        entry.used_at = self._clock()
        self._entries[entry] = None
        self._count(entry, 1)
        self._added(entry)
        self.inserts += 1
        for other in replaced:
            self._remove(other)
        while self._over():
            self._remove(next(iter(self._entries)))
            self.evictions_lru += 1
        return True

    def expire(self) -> None:
        """Drop what has not been used for too long."""
        deadline = self._clock() - self.limits.ttl
        while self._entries and (oldest := next(iter(self._entries))).used_at <= deadline:
            self._remove(oldest)
            self.evictions_ttl += 1

    def reclaim(self) -> bool:
        """Drop the least recently used entry that holds memory which nobody else needs; False when none does."""
        for entry in self._entries:
            if self._storage.freed_by_drop(entry.state):
                self._remove(entry)
                self.evictions_lru += 1
                return True
        return False

    def clear(self) -> None:
        """Drop everything."""
        for entry in list(self._entries):
            self._remove(entry)

    def _added(self, entry: Entry) -> None:
        """For the way in which entries are found."""

    def _removed(self, entry: Entry) -> None:
        """For the way in which entries are found."""

    def _over(self) -> bool:
        return self.bytes > self.limits.capacity or len(self) > self.limits.entries

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry]
        self._count(entry, -1)
        self._removed(entry)
        self._storage.drop(entry.state)

    def _count(self, entry: Entry, change: int) -> None:
        self._own_bytes += change * entry.state.own_bytes
        for block in entry.state.blocks:
            self._holders[block] += change
            if not self._holders[block]:
                del self._holders[block]

    def _reject(self, size: int) -> None:
        if not self.rejections_oversized:
            log.warning(
                "a prompt of %.1f MiB does not fit the prompt cache of %.1f MiB (%s) and is not kept",
                size / 2**20,
                self.limits.capacity / 2**20,
                self.limits.flag,
            )
        self.rejections_oversized += 1
