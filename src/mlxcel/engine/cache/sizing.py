"""How much memory keys, values and the prompt cache may take."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from mlxcel.config import MIN_SLOT_CONTEXT, CacheConfig, EngineConfig
from mlxcel.engine.backend import KvLimit
from mlxcel.engine.cache.storage import KvStorage
from mlxcel.engine.errors import BadConfig

PREFIX_CAPACITY = 2 << 30
SNAPSHOT_CAPACITY = 512 << 20
NEW_SEQUENCE = -1
"""A key that no sequence has."""

_LARGE_ENTRIES = 6
_LARGE_ENTRY_TOKENS = 8192
"""A cache holds at least that many conversations of that length, where memory allows."""
_HEADROOM = 1.2
"""Memory is there for what is planned with, times this."""
_ACTIVATIONS = 256 << 20
"""Bytes left to the intermediate results of a step."""

Cost = Callable[[int], int]
"""Bytes that a sequence of so many tokens takes."""


def cache_capacity(wanted: int | None, least: int, cost: Cost, free: int | None) -> int:
    """Bytes that a cache may hold.

    wanted: what the flag says. least: the default. free: memory there is; None: unknown.
    """
    if wanted is not None:
        return wanted if free is None else min(wanted, max(least, free))
    raised = max(least, _LARGE_ENTRIES * cost(_LARGE_ENTRY_TOKENS))
    return raised if free is not None and raised <= free // 2 else least


def kv_budget(engine: EngineConfig, cache: CacheConfig, window: int, cost: Cost, free: int | None) -> int:
    """Bytes for the keys and values of running sequences and of the prompt cache together: no more than they can use.

    window: tokens the model was made for. free: memory there is; None: unknown. Raises BadConfig for a budget that does
    not hold one sequence.
    """
    least = cost(min(window, MIN_SLOT_CONTEXT))
    if isinstance(cache.kv_budget, int) and cache.kv_budget < least:
        raise BadConfig(
            f"--kv-cache-budget {cache.kv_budget} does not hold {MIN_SLOT_CONTEXT} tokens of this model, "
            f"which take {least} bytes"
        )
    kept = cache_capacity(cache.capacity_bytes, PREFIX_CAPACITY, cost, free) if cache.kept else 0
    most = engine.slots * cost(engine.slot_context(window, engine.slots)) + kept
    if isinstance(cache.kv_budget, int):
        return min(most, cache.kv_budget)
    if cache.kv_budget is None or free is None:
        return most
    return min(most, max(least, int((free - _ACTIVATIONS) / _HEADROOM)))


def kv_limit(storage: KvStorage, window: int) -> KvLimit | None:
    """What a sequence that has all memory can be; None when it can have `window` tokens."""
    budget = storage.memory.budget
    if budget is None or storage.growth(NEW_SEQUENCE, window) <= budget:
        return None
    tokens = bisect_right(range(window), budget, key=lambda n: storage.growth(NEW_SEQUENCE, n)) - 1
    return KvLimit(tokens, budget)
