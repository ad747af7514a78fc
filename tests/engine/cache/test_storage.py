"""The two storages: what they say things cost is what they cost, and what is kept stays as it was."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from mlxcel.config import CacheConfig, EngineConfig
from mlxcel.engine.cache.footprint import Footprint, footprint
from mlxcel.engine.cache.rows import RowCaches
from mlxcel.engine.cache.sizing import NEW_SEQUENCE, cache_capacity, kv_budget, kv_limit
from mlxcel.engine.cache.stock import compact, copied, reuse_of
from mlxcel.engine.cache.storage import KvStorage, Reuse
from mlxcel.engine.errors import BadConfig
from mlxcel.models import mlxlm
from tests.engine.scripted import ScriptedStorage
from tests.engine.test_native_backend import backend as native_backend
from tests.engine.test_runner import backend as mlx_backend

mlxlm.prepare()
from mlx_lm.models.cache import (  # noqa: E402
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    RotatingKVCache,
)

KINDS = {
    "decoder": lambda: native_backend("llama", "4 bits in 32"),
    "paged": lambda: mlx_backend("llama", "paged", blocks=64),
    "both": lambda: mlx_backend("qwen3_next", "paged", blocks=64),
    "stock": lambda: mlx_backend("llama", "stock"),
    "rotating": lambda: mlx_backend("gemma3_text", "stock"),
    "int8": lambda: mlx_backend("llama", "int8"),
}


def filled(kind: type, length: int, *arguments: Any) -> Any:
    cache = kind(*arguments)
    cache.update_and_fetch(mx.ones((1, 2, length, 8)), mx.ones((1, 2, length, 8)))
    return cache


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_come_and_go(kind: str) -> None:
    """Through a life with a copy that outlives it."""
    backend = KINDS[kind]()
    kv: KvStorage = backend.kv
    assert kv.memory.used == kv.length(1) == 0
    for count in (1, 70, 200):
        grown = kv.memory.used + kv.growth(1, count)
        backend.prefill(1, [3] * count)
        assert kv.memory.used == grown
    assert kv.length(1) == 271
    saved = kv.save(1, 271)
    assert saved is not None
    assert (saved.length, len(saved.blocks) * kv.block_bytes + saved.own_bytes > 0) == (271, True)
    assert kv.growth(1, 1) > 0 or not kv.block_bytes, "its last block is to be copied"
    backend.join(1)
    backend.decode([1])
    assert kv.length(1) == 272
    backend.leave([])
    assert kv.length(1) == 0
    assert kv.memory.used == kv.freed_by_drop(saved) == len(saved.blocks) * kv.block_bytes + saved.own_bytes
    kv.adopt(2, saved, 271)
    assert kv.length(2) == 271
    backend.prefill(2, [4] * 100)
    kv.drop(saved)
    kv.discard(2)
    kv.discard(2)
    assert kv.memory.used == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_sequence_costs_what_it_will_take(kind: str) -> None:
    backend = KINDS[kind]()
    cost = backend.kv.growth(NEW_SEQUENCE, 300)
    backend.prefill(1, [3] * 300)
    assert backend.kv.memory.used == cost > 0


def test_stock_caches_have_a_budget_too() -> None:
    cost = Footprint(growing=((100, 0),)).bytes
    caches = RowCaches(lambda: [KVCache()], None, Footprint(growing=((100, 0),)), budget=3 * cost(256))

    def feed(layers: Any, rows: int, count: int) -> None:
        layers[0].update_and_fetch(mx.ones((rows, 1, count, 4)), mx.ones((rows, 1, count, 4)))
        caches.commit()

    feed(caches.of_row(1, 256), 1, 256)
    with pytest.raises(MemoryError):
        caches.of_row(2, 600)
    caches.discard(2)
    feed(caches.of_row(2, 10), 1, 10)
    caches.join(1)
    caches.join(2)
    assert caches.memory.used == 2 * cost(256), "rows are padded to the longest"
    with pytest.raises(MemoryError):
        caches.of_batch()
    caches.keep([1])
    feed(caches.of_batch(), 1, 1)
    caches.reset()
    assert caches.memory.used == 0


def test_a_state_that_cannot_be_copied_is_not_kept() -> None:
    class Odd(KVCache):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("cannot copy")

    caches = RowCaches(lambda: [Odd()])
    caches.of_row(1, 3)[0].update_and_fetch(mx.ones((1, 1, 3, 4)), mx.ones((1, 1, 3, 4)))
    caches.commit()
    assert caches.save(1, 3) is None
    assert caches.memory.used == 0


def test_what_can_be_cut() -> None:
    plain, rotating, arrays = KVCache(), RotatingKVCache(8), ArraysCache(2)
    assert reuse_of([plain, ConcatenateKVCache(), CacheList(KVCache(), KVCache())]) is Reuse.BEGINNING
    for other in (rotating, arrays, ChunkedKVCache(8), CacheList(plain, arrays)):
        assert reuse_of([plain, other]) is Reuse.WHOLE
    assert reuse_of([]) is Reuse.BEGINNING, "all of it is in blocks"


def test_a_copy_is_cut_and_takes_no_more_than_it_needs() -> None:
    caches = [filled(KVCache, 100), CacheList(filled(KVCache, 100))]
    kept = copied(caches, 40)
    assert compact(kept) == sum(cache.nbytes for cache in kept) == 2 * 60 * 2 * 2 * 8 * 4
    caches[0].update_and_fetch(mx.zeros((1, 2, 1, 8)), mx.zeros((1, 2, 1, 8)))
    assert kept[0].offset == 60
    assert mx.all(kept[0].keys == 1).item()


def test_footprints_tell_windows_and_states_from_what_grows() -> None:
    state = ArraysCache(1)
    state[0] = mx.ones((1, 10))
    token = 2 * 2 * 8 * 4
    taken = footprint([filled(KVCache, 5), CacheList(filled(RotatingKVCache, 5, 300)), state])
    assert taken.bytes(0) == 0
    assert taken.bytes(1) == taken.bytes(256) == 40 + 2 * token * 256
    assert taken.bytes(1000) == 40 + token * 1024 + token * 300
    assert taken.mode == "fp32"


def cost(tokens: int) -> int:
    return tokens * 1000


@pytest.mark.parametrize(
    ("wanted", "free", "capacity"),
    [
        (123, 1 << 40, 123),
        (123, None, 123),
        (1 << 60, 1 << 40, 1 << 40),
        (1 << 60, 0, 1 << 20),
        (None, 1 << 40, 6 * 8192 * 1000),
        (None, 50 << 20, 1 << 20),
        (None, None, 1 << 20),
    ],
)
def test_a_cache_holds_more_of_a_large_model_where_there_is_memory(
    wanted: int | None, free: int | None, capacity: int
) -> None:
    assert cache_capacity(wanted, 1 << 20, cost, free) == capacity


def test_the_budget_is_what_can_be_used_or_what_there_is() -> None:
    engine, cache = EngineConfig(parallel=4, ctx_size=8192), CacheConfig(capacity_bytes=10_000_000)
    most = 4 * 2048 * 1000 + 10_000_000

    def budget(free: int | None, **changes: Any) -> int:
        return kv_budget(engine, CacheConfig(**{"capacity_bytes": 10_000_000, **changes}), 4096, cost, free)

    assert kv_budget(engine, cache, 4096, cost, None) == most
    assert budget(1 << 40) == most
    assert budget(1 << 40, cache_prompt=False) == most - 10_000_000
    assert budget(300 << 20, kv_budget=None) == most
    assert budget((256 << 20) + 12_000_000) == 10_000_000
    assert budget(0) == 512 * 1000, "one short sequence at least"
    assert budget(0, kv_budget=600_000) == 600_000
    assert budget(0, kv_budget=1 << 60) == most
    with pytest.raises(BadConfig, match="--kv-cache-budget 500000 does not hold 512 tokens of this model"):
        budget(None, kv_budget=500_000)


@pytest.mark.parametrize(("budget", "tokens"), [(None, None), (20, None), (19, 152), (1, 8), (0, 0)])
def test_a_sequence_can_have_all_of_the_budget(budget: int | None, tokens: int | None) -> None:
    limit = kv_limit(ScriptedStorage(budget=budget), 160)
    assert (limit and limit.tokens) == tokens
    if limit is not None and budget is not None:
        assert limit.bytes == budget * ScriptedStorage.block_bytes
