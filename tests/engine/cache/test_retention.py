"""When which tokens are forgotten."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.cache.batch import BatchCache
from mlxcel.engine.cache.footprint import footprint
from mlxcel.engine.cache.forgetting import ForgettingCache, able_to_forget
from mlxcel.engine.cache.probe import forgetting
from mlxcel.engine.cache.quantised import Packing, QuantisedCache
from mlxcel.engine.cache.retention import SINK, Retention
from mlxcel.models import mlxlm
from mlxcel.models.errors import ModelError
from tests.kernels.small_models import random_model

mlxlm.prepare()
from mlx_lm.models.cache import ArraysCache, CacheList, ConcatenateKVCache, KVCache, RotatingKVCache  # noqa: E402


@given(st.integers(256, 5000), st.lists(st.integers(1, 700), min_size=1))
def test_what_is_forgotten_depends_on_places_and_not_on_pieces(size: int, pieces: list[int]) -> None:
    retention = Retention.within(size)
    assert retention.most % SINK == retention.step % SINK == 0
    assert size - SINK < retention.most <= size
    assert retention.step <= retention.most - 2 * SINK
    forgotten, place = 0, 0
    for piece in pieces:
        left = piece
        while left:
            if place - forgotten >= retention.most:
                forgotten += retention.step
            count = min(left, retention.piece_end(place) - place)
            assert count > 0
            place, left = place + count, left - count
            assert place - forgotten <= retention.most
    one_by_one = 0
    for at in range(place):
        if at - one_by_one == retention.most:
            one_by_one += retention.step
    assert forgotten == one_by_one


def numbered(kind: str) -> Any:
    """A new cache; what is stored for a token is its number."""
    return able_to_forget(KVCache() if kind == "plain" else QuantisedCache(KVCache(), Packing(8), Packing(8)))


def feed(cache: Any, rows: list[list[int]]) -> list[list[int]]:
    """Store a token of each row, or several of the only one. The numbers that come back, padding left out."""
    numbers = mx.array(rows, mx.float32)[:, None, :, None] * mx.ones((1, 2, 1, 32))
    keys, values = cache.update_and_fetch(numbers, -numbers)
    assert mx.array_equal(keys, -values)
    return [[round(x) for x in row if x] for row in keys[:, 0, :, 0].tolist()]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_cache_forgets_in_the_middle_and_counts_on(kind: str) -> None:
    cache = numbered(kind)
    feed(cache, [list(range(1, 401))])
    cache.forget([0], 64, 128)
    assert cache.offset == 400
    assert cache.size() == 272
    left = [*range(1, 65), *range(193, 401)]
    assert feed(cache, [[401]]) == [[*left, 401]]
    assert cache.offset == 401


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_rows_of_a_batch_forget_each_for_itself(kind: str) -> None:
    batch = BatchCache()
    for first, length in ((1, 300), (1001, 70), (2001, 200)):
        row = numbered(kind)
        feed(row, [list(range(first, first + length))])
        batch.join([row])
    (cache,) = batch.layers
    cache.forget([0, 2], 64, 64)
    assert cache.offset.tolist() == [300, 70, 200]
    expected = [
        [*range(1, 65), *range(129, 302)],
        list(range(1001, 1072)),
        [*range(2001, 2065), *range(2129, 2202)],
    ]
    assert feed(cache, [[301], [1071], [2201]]) == expected
    assert cache.offset.tolist() == [301, 71, 201]
    batch.keep([2, 0])
    assert cache.offset.tolist() == [201, 301]
    cache.forget([0], 64, 64)
    expected = [[*range(2001, 2065), *range(2193, 2203)], [*expected[0], 302]]
    assert feed(cache, [[2202], [302]]) == expected
    newcomer = numbered(kind)
    feed(newcomer, [[7, 8]])
    batch.join([newcomer])
    assert feed(cache, [[2203], [303], [9]]) == [[*expected[0], 2203], [*expected[1], 303], [7, 8, 9]]
    assert cache.offset.tolist() == [203, 303, 3]
    (alone,) = batch.extract(0)
    assert alone.offset == 203
    assert feed(alone, [[2204]]) == [[*expected[0], 2203, 2204]]


def test_what_can_forget() -> None:
    pair = able_to_forget(CacheList(KVCache(), ArraysCache(1)))
    assert isinstance(pair[0], ForgettingCache)
    assert isinstance(pair[1], ArraysCache)
    rotating = RotatingKVCache(8)
    assert able_to_forget(rotating) is rotating


def test_bytes_and_mode_are_those_of_the_cache_inside() -> None:
    for kind, mode in (("plain", "fp32"), ("packed", "int8")):
        cache = numbered(kind)
        feed(cache, [[1, 2]])
        inner = cache.inner
        assert footprint([cache]) == footprint([inner])
        assert footprint([cache]).mode == mode


def test_a_model_whose_caches_keep_all_they_are_given_is_refused() -> None:
    model = random_model("llama", seed=3, vocabulary=258)
    with pytest.raises(ModelError, match=r"^--max-kv-size: .* a ConcatenateKVCache keeps all it is given$"):
        forgetting(model, lambda: [ConcatenateKVCache() for _ in model.layers])


def test_a_model_that_does_not_take_such_caches_is_refused() -> None:
    model = random_model("llama", seed=3, vocabulary=258)

    def call(tokens: mx.array, cache: list[Any]) -> mx.array:
        assert all(type(entry) is KVCache for entry in cache)
        return model(tokens, cache=cache)

    with pytest.raises(ModelError, match=r"^--max-kv-size: this model cannot forget tokens"):
        forgetting(call, lambda: mlxlm.make_prompt_cache(model))  # type: ignore[arg-type]
