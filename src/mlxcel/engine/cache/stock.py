"""Copies of mlx-lm's caches of one sequence, made to be kept.

Arrays are values, so a copy shares memory with what it was made from until one of the two is written.
"""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy

import mlx.core as mx

from mlxcel.engine.cache.batch import LayerCaches
from mlxcel.engine.cache.footprint import arrays_of, parts
from mlxcel.engine.cache.storage import Reuse

_CUT_ANYWHERE = frozenset({"KVCache", "ConcatenateKVCache", "QuantisedCache", "ForgettingCache"})


def reuse_of(caches: LayerCaches) -> Reuse:
    """What another sequence can take over of such caches."""
    kinds = {type(cache).__name__ for cache in parts(caches)}
    return Reuse.BEGINNING if kinds <= _CUT_ANYWHERE else Reuse.WHOLE


def copied(caches: LayerCaches, dropped: int = 0) -> LayerCaches:
    """A copy without the last `dropped` tokens; only caches that can be cut may lose any."""
    copies = copy.deepcopy(caches)
    for cache in parts(copies) if dropped else ():
        cache.trim(dropped)
    return copies


def compact(caches: LayerCaches) -> int:
    """Give up room to grow and what else is not needed, in place. Returns the bytes that are left."""
    for cache in parts(caches):
        if type(cache).__name__ in _CUT_ANYWHERE:
            cache.keys = _trimmed(cache.keys, cache.offset)
            cache.values = _trimmed(cache.values, cache.offset)
    # Until it is computed, an array holds what it is computed from.
    mx.eval(list(arrays_of([cache.state for cache in caches])))
    return sum(cache.nbytes for cache in caches)


def _trimmed(array: mx.array | None, length: int) -> mx.array | None:
    return None if array is None else mx.contiguous(array[..., :length, :])
