"""What mlx-lm's caches of one sequence take, as a function of its length."""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxcel.engine.cache.batch import LayerCaches
from mlxcel.engine.cache.quantised import type_name

_STEP = 256
"""Positions by which mlx-lm's caches grow."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of the caches of one sequence."""

    fixed: int = 0
    """Of states that do not grow."""
    growing: tuple[tuple[int, int], ...] = ()
    """Bytes a position, and how many positions are kept (0: all), of each that grows."""
    mode: str = ""
    """What keys and values are stored as; empty without any."""

    @property
    def grows(self) -> bool:
        """Whether a longer sequence takes more without an end."""
        return any(most == 0 for _, most in self.growing)

    def bytes(self, tokens: int) -> int:
        """Of a sequence of that many tokens."""
        if not tokens:
            return 0
        positions = -(-tokens // _STEP) * _STEP
        return self.fixed + sum(size * min(positions, most or positions) for size, most in self.growing)


def footprint(used: LayerCaches) -> Footprint:
    """What caches take that have been used for a few tokens."""
    fixed, growing, modes = 0, list[tuple[int, int]](), set[str]()
    for cache in parts(used):
        arrays = list(arrays_of((getattr(cache, "keys", None), getattr(cache, "values", None))))
        if not arrays:
            fixed += cache.nbytes
            continue
        most = getattr(cache, "max_size", 0) or getattr(cache, "chunk_size", 0)
        growing.append((sum(array.nbytes // array.shape[-2] for array in arrays), most))
        modes.add(getattr(cache, "mode", None) or type_name(arrays[0].dtype))
    return Footprint(fixed, tuple(growing), ", ".join(sorted(modes)))


def parts(caches: Iterable[Any]) -> Iterator[Any]:
    """Caches, those that hold several taken apart."""
    for cache in caches:
        inner = getattr(cache, "caches", None)
        if inner is None:
            yield cache
        else:
            yield from parts(inner)


def arrays_of(tree: Any) -> Iterator[mx.array]:
    """All arrays in nested tuples and lists."""
    if isinstance(tree, mx.array):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for branch in tree:
            yield from arrays_of(branch)
