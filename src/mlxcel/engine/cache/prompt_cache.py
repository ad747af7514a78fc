"""The prompt cache: what finished sequences leave behind, and what new ones begin with.

A state is kept only of a sequence that ended well, and only for requests of the same API key; one that cannot be cut
only for the same conversation. Nothing is kept of one that still runs, but others may begin with its first tokens. All
of it belongs to the worker thread.
"""

from __future__ import annotations

import dataclasses
import logging
import time

import numpy as np

from mlxcel.config import CacheConfig
from mlxcel.engine.cache.entry import Match, common_length
from mlxcel.engine.cache.hashing import BlockHasher, Tokens
from mlxcel.engine.cache.prefix import PrefixStore
from mlxcel.engine.cache.sizing import NEW_SEQUENCE, PREFIX_CAPACITY, SNAPSHOT_CAPACITY, cache_capacity
from mlxcel.engine.cache.snapshots import SnapshotStore
from mlxcel.engine.cache.stats import CacheStats, empty_stats
from mlxcel.engine.cache.storage import KvStorage, Reuse, SavedState
from mlxcel.engine.cache.store import Clock, EntryStore, Limits
from mlxcel.engine.sequence import Sequence

log = logging.getLogger(__name__)


class PromptCache:
    """States of `storage`, within the limits of `config`.

    free: bytes of memory there are now; None: unknown. Raises UnknownHash.
    """

    def __init__(
        self, storage: KvStorage, config: CacheConfig, *, free: int | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._storage = storage
        self._config = config
        self._reuse = storage.reuse if config.kept else Reuse.NOTHING
        hasher = BlockHasher(config.apc_hash, config.apc_block_size) if config.apc_enabled else None
        self._prefixes = PrefixStore(
            storage, _prefix_limits(storage, config, free), clock, hasher, config.apc_num_blocks
        )
        self._snapshots = SnapshotStore(storage, _snapshot_limits(storage, config, free), clock)
        self._store: EntryStore = self._snapshots if self._reuse is Reuse.WHOLE else self._prefixes
        self._lookups = self._hits = self._unsaved = 0

    @property
    def expires_in(self) -> float | None:
        """Seconds until `expire` has something to do; None when it has not."""
        return self._store.expires_in

    def find(self, sequence: Sequence) -> Match | None:
        """What is known of a sequence's tokens, the last one excepted: it is run to get logits."""
        if not self._serves(sequence):
            return None
        self._store.expire()
        tokens = _array(sequence.tokens[:-1])
        if self._reuse is Reuse.WHOLE:
            match = self._snapshots.find(_conversation(sequence), tokens)
        else:
            match = self._prefixes.find(sequence.request.tenant, tokens)
        if match is None or match.length < self._config.min_prefix:
            return None
        self._store.touch(match.entry)
        return match

    def find_running(self, sequence: Sequence, running: tuple[Sequence, ...]) -> tuple[Sequence | None, int]:
        """The one of `running` that has most of a sequence's tokens, the last one excepted, and how many that are."""
        best: tuple[Sequence | None, int] = (None, 0)
        if self._reuse is not Reuse.BEGINNING or not self._serves(sequence):
            return best
        tokens = _array(sequence.tokens[:-1])
        for other in running:
            if self._serves(other) and other.request.tenant == sequence.request.tenant:
                length = common_length(_array(other.tokens[: self._storage.length(other.key)]), tokens)
                if length >= max(self._config.min_prefix, best[1] + 1):
                    best = (other, length)
        return best

    def record(self, sequence: Sequence, cached: int) -> None:
        """Count what was found of a sequence, once it runs for the first time."""
        self._lookups += self._serves(sequence)
        self._hits += cached > 0
        self._trace("prompt of %d tokens begins with %d known ones", len(sequence.tokens), cached)

    def boundary(self, sequence: Sequence) -> int | None:
        """After how many tokens `keep_boundary` is to be called; None: never.

        Chat templates write an answer differently once it is history, so no later prompt may go on from the state after
        it. One goes on from the state after the history.
        """
        history = sequence.request.history
        if self._reuse is not Reuse.WHOLE or history is None or not self._config.boundaries:
            return None
        if not self._serves(sequence):
            return None
        return history if self._config.min_prefix <= history < len(sequence.tokens) else None

    def keep_boundary(self, sequence: Sequence) -> None:
        """Keep the state of a sequence that has read the tokens up to its boundary."""
        self._keep(sequence, {sequence.boundary}, producer="boundary")

    def keep_ahead(self, sequence: Sequence) -> None:
        """Keep the state of a sequence that has been read up to its boundary before anybody asked.

        The state that it goes on from stays: the answer in between may be asked for again.
        """
        self._keep(sequence, {sequence.boundary}, producer="ahead")

    def donate(self, sequence: Sequence) -> None:
        """Keep the state of a sequence that ended well and is still there."""
        # The last token was drawn and not run, unless an end token was drawn after it.
        self._keep(sequence, {len(sequence.tokens) - 1, len(sequence.tokens)}, producer="end")

    def reclaim(self) -> bool:
        """Give memory back that nothing but the cache holds; False when there is none."""
        return self._store.reclaim()

    def expire(self) -> None:
        """Drop what nobody used for too long."""
        self._store.expire()

    def clear(self) -> None:
        """Drop everything."""
        self._store.clear()

    def stats(self) -> CacheStats:
        """Current numbers."""
        memory, prefixes, snapshots = self._storage.memory, self._prefixes, self._snapshots
        stats = dataclasses.replace(
            empty_stats(self._config),
            kv_cache_mode_effective=self._storage.mode,
            kv_bytes_used=memory.used,
            kv_bytes_budget=memory.budget,
            kv_block_bytes=self._storage.block_bytes,
        )
        if not self._config.kept:
            return stats
        return dataclasses.replace(
            stats,
            entries=len(prefixes),
            bytes=prefixes.bytes,
            capacity_bytes=prefixes.limits.capacity,
            hits=self._hits,
            lookups=self._lookups,
            hit_rate=self._hits / max(1, self._lookups),
            inserts=prefixes.inserts,
            evictions_lru=prefixes.evictions_lru,
            evictions_ttl=prefixes.evictions_ttl,
            rejections_oversized=self._store.rejections_oversized,
            total_blocks_stored=prefixes.blocks_stored,
            unique_block_hashes=prefixes.unique_blocks,
            apc_active_entries=len(prefixes) if self._config.apc_enabled else 0,
            snapshot_entries=len(snapshots),
            snapshot_bytes=snapshots.bytes,
            snapshot_bytes_per_entry=snapshots.bytes // max(1, len(snapshots)),
            snapshot_capacity_bytes=snapshots.limits.capacity,
            snapshot_hits=self._hits if self._reuse is Reuse.WHOLE else 0,
            snapshot_inserts=snapshots.inserts,
            snapshot_supersedes=snapshots.supersedes,
            snapshot_evictions_lru=snapshots.evictions_lru,
            snapshot_evictions_ttl=snapshots.evictions_ttl,
            reject_model_owned_state=self._unsaved,
        )

    def _trace(self, message: str, *values: object) -> None:
        if self._config.trace:
            log.info("prompt cache: " + message, *values)

    def _serves(self, sequence: Sequence) -> bool:
        return self._reuse is not Reuse.NOTHING and sequence.request.cache_prompt

    def _keep(self, sequence: Sequence, stored: set[int | None], producer: str) -> None:
        """stored: how many tokens may be there. Any other number is a mistake somewhere, which must not spread."""
        length = self._storage.length(sequence.key)
        if not self._serves(sequence) or length < self._config.min_prefix or length not in stored:
            self._trace("state of %d tokens is not kept: unwanted, short, or not where it should be", length)
            return

        def save() -> SavedState | None:
            state = self._storage.save(sequence.key, length)
            self._unsaved += state is None
            self._trace("state of %d tokens is %s", length, "kept" if state else "not kept: the model owns it")
            return state

        tokens = _array(sequence.tokens[:length])
        if self._reuse is Reuse.WHOLE:
            self._snapshots.put(_conversation(sequence), tokens, producer, save)
        else:
            self._prefixes.put(sequence.request.tenant, tokens, save)


def _array(tokens: list[int]) -> Tokens:
    return np.asarray(tokens, np.int32)


def _conversation(sequence: Sequence) -> str:
    return f"{sequence.request.tenant}\0{sequence.request.conversation}"


def _prefix_limits(storage: KvStorage, config: CacheConfig, free: int | None) -> Limits:
    capacity = _capacity(storage, config.capacity_bytes, PREFIX_CAPACITY, free)
    return Limits(capacity, config.max_entries, config.ttl, "--prompt-cache-capacity-bytes")


def _snapshot_limits(storage: KvStorage, config: CacheConfig, free: int | None) -> Limits:
    capacity = _capacity(storage, config.snapshot_capacity_bytes, SNAPSHOT_CAPACITY, free)
    return Limits(capacity, config.snapshot_max_entries, config.snapshot_ttl, "--prompt-cache-snapshot-capacity-bytes")


def _capacity(storage: KvStorage, wanted: int | None, least: int, free: int | None) -> int:
    capacity = cache_capacity(wanted, least, lambda tokens: storage.growth(NEW_SEQUENCE, tokens), free)
    budget = storage.memory.budget
    return capacity if budget is None else min(capacity, budget)
