"""Rows that join and leave a batch's caches."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlxcel.engine.cache.batch import BatchCache, can_batch
from mlxcel.models import mlxlm

mlxlm.prepare()
from mlx_lm.models.cache import ConcatenateKVCache, KVCache  # noqa: E402


def filled(kind: type, value: float, length: int = 3) -> list[object]:
    """Two layers of caches that hold `length` positions of `value`."""
    layers = [kind(), kind()]
    for layer in layers:
        layer.update_and_fetch(mx.full((1, 1, length, 4), value), mx.full((1, 1, length, 4), value))
    return layers


def values(batch: BatchCache) -> list[float]:
    """The last value of each row."""
    layer = batch.layers[0]
    return layer.values[:, 0, layer._idx - 1, 0].tolist()


def test_rows_keep_their_order() -> None:
    batch = BatchCache()
    for value, length in ((1.0, 3), (2.0, 5), (3.0, 1)):
        batch.join(filled(KVCache, value, length))
    assert values(batch) == [1.0, 2.0, 3.0]
    batch.keep([0, 2])
    assert values(batch) == [1.0, 3.0]
    batch.join(filled(KVCache, 4.0))
    assert values(batch) == [1.0, 3.0, 4.0]
    batch.keep([])
    assert batch.layers == []
    batch.join(filled(KVCache, 5.0))
    assert values(batch) == [5.0]


def test_caches_that_cannot_be_batched_hold_one_row() -> None:
    row = filled(ConcatenateKVCache, 1.0)
    assert not can_batch(row)
    batch = BatchCache()
    batch.join(row)
    assert batch.layers is row
    with pytest.raises(ValueError, match="one sequence at a time"):
        batch.join(filled(ConcatenateKVCache, 2.0))
    batch.keep([])
    assert batch.layers == []
