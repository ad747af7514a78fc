"""Keys and values in fewer bits."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.config import CacheConfig
from mlxcel.engine.cache.footprint import footprint
from mlxcel.engine.cache.kv_mode import KvMode, kv_mode
from mlxcel.engine.cache.quantised import GROUP, Packing, QuantisedCache
from mlxcel.engine.cache.stock import compact, copied
from mlxcel.models import mlxlm

mlxlm.prepare()
from mlx_lm.models.cache import KVCache  # noqa: E402


def random(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def filled(length: int, keys: int | None = 8, values: int | None = 4, seed: int = 0) -> QuantisedCache:
    cache = QuantisedCache(KVCache(), Packing(keys), Packing(values))
    cache.update_and_fetch(random(1, 2, length, 64, seed=seed), random(1, 2, length, 64, seed=seed + 1))
    return cache


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("width", [32, 96, 128])
def test_what_is_unpacked_is_what_mlx_makes_of_it(bits: int, dtype: mx.Dtype, width: int) -> None:
    x = random(1, 2, 5, width, dtype=dtype)
    packing = Packing(bits).of(x)
    words = packing.pack(x)
    expected = mx.dequantize(*mx.quantize(x, group_size=GROUP, bits=bits), group_size=GROUP, bits=bits)
    assert words.dtype == mx.uint16
    assert packing.unpack(words).dtype == dtype
    assert mx.array_equal(packing.unpack(words), expected)
    assert packing.unpack(words[..., 2:4, :]).shape == (1, 2, 2, width)


def test_without_bits_nothing_is_packed() -> None:
    x = random(1, 1, 3, 64)
    assert mx.array_equal(Packing(None).unpack(Packing(None).pack(x)), x)


def test_it_grows_and_is_cut_as_the_plain_one() -> None:
    cache = filled(300)
    keys, values = cache.update_and_fetch(random(1, 2, 1, 64), random(1, 2, 1, 64))
    assert keys.shape == values.shape == (1, 2, 301, 64)
    assert cache.offset == cache.size() == 301
    before, _ = filled(300).keys_and_values()
    assert mx.array_equal(keys[..., :300, :], before)
    cache.trim(51)
    assert mx.array_equal(cache.keys_and_values()[0], before[..., :250, :])
    assert cache.make_mask(4, return_array=False, window_size=None) == "causal"


def test_rows_join_and_leave() -> None:
    caches = [filled(length, seed=length) for length in (3, 7, 5)]
    alone = [cache.keys_and_values() for cache in caches]
    batch = caches[0].merge([caches[0]])
    for cache in caches[1:]:
        batch.extend(cache.merge([cache]))
    batch.filter([0, 2])
    for row, (keys, values) in enumerate((alone[0], alone[2])):
        taken = batch.extract(row)
        assert mx.array_equal(taken.keys_and_values()[0], keys)
        assert mx.array_equal(taken.keys_and_values()[1], values)
    nothing = QuantisedCache(KVCache(), Packing(8), Packing(4))
    batch = nothing.merge([nothing])
    batch.extend(caches[1].merge([caches[1]]))
    assert mx.array_equal(batch.extract(1).keys_and_values()[0], alone[1][0])


def test_a_copy_keeps_what_it_had() -> None:
    cache = filled(40)
    expected = cache.keys_and_values()[0]
    (kept,) = copied([cache], 10)
    size = compact([kept])
    cache.update_and_fetch(random(1, 2, 9, 64, seed=8), random(1, 2, 9, 64))
    assert kept.offset == 30
    assert mx.array_equal(kept.keys_and_values()[0], expected[..., :30, :])
    assert size == kept.nbytes == 30 * 2 * (64 + 2 * 8 + 32 + 2 * 8)
    assert copy.deepcopy(kept).offset == 30


def test_its_footprint_is_that_of_the_words() -> None:
    assert footprint([filled(3)]).mode == "int8+int4"
    assert footprint([filled(3, 8, 8)]).mode == "int8"
    assert footprint([filled(3, None, 8), filled(3, None, None)]).mode == "fp32, fp32+int8"
    assert footprint([filled(3, 8, 8)]).bytes(256) == 256 * 2 * 2 * (64 + 2 * 8)


@pytest.mark.parametrize(
    ("flags", "mode"),
    [
        ({}, KvMode()),
        ({"kv_mode": "int8"}, KvMode(8, 8)),
        ({"kv_mode": "turbo4"}, KvMode(4, 4, outer=2)),
        ({"kv_mode": "fp16+turbo4"}, KvMode(None, 4, outer=2)),
        ({"kv_mode": "fp16+turbo3", "kv_outer_layers": 1}, KvMode(None, 3, outer=1)),
        ({"kv_mode": "turbo4-delegated"}, KvMode(None, 4, outer=2)),
        ({"kv_mode": "int8", "kv_values": "f16"}, KvMode(8, None)),
        ({"kv_keys": "int8", "kv_values": "turbo3"}, KvMode(8, 3, outer=2)),
        ({"kv_bits": 4}, KvMode(4, 4, skip_last=True)),
        ({"kv_bits": 8, "kv_skip_last": False, "kv_mode": "turbo4"}, KvMode(8, 8)),
    ],
)
def test_flags(flags: dict[str, Any], mode: KvMode) -> None:
    assert kv_mode(CacheConfig(**flags)) == mode
    assert mode.plain == (not flags)


def test_layers_at_the_ends_keep_their_bits() -> None:
    mode = KvMode(None, 4, outer=2)
    assert [mode.of_layer(i, 6)[1] for i in range(6)] == [None, None, 4, 4, None, None]
    assert [KvMode(4, 4, skip_last=True).of_layer(i, 3) for i in range(3)] == [(4, 4), (4, 4), (None, None)]
