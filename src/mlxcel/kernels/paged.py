"""What a model that runs as an MLX graph sees as its KV cache when keys and values live in the native paged cache.

mlx-lm's caches hold keys and values as arrays, [rows, heads, length, head_dim], so the rows of a batch are padded to
the longest one and copied as they grow. Here a layer's attention is one operation that writes the new keys and values
into blocks of 64 positions and attends to those of each row: any lengths, in half precision, nothing padded or copied.
"""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

BLOCK = 64
"""Positions in a block."""


class MaskNeeded(Exception):
    """The model wants the attention mask as an array, which a paged cache does not have."""


class CausalMask(str):
    """The word "causal", as models pass it on to the attention, with the window they asked for."""

    window: int

    def __new__(cls, window: int) -> CausalMask:
        mask = super().__new__(cls, "causal")
        mask.window = window
        return mask


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The keys (or values) of one layer."""

    kv_heads: int
    head_dim: int
    window: int
    """Positions a token sees, its own included; 0 for all."""

    @property
    def servable(self) -> bool:
        """Whether the kernels can handle it."""
        return self.head_dim % 16 == 0 and 32 <= self.head_dim <= 256

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's keys and values, in bfloat16."""
        return self.kv_heads * self.head_dim * BLOCK * 2 * 2


class PagedLayer:
    """Stands where mlx-lm has a `KVCache` or `RotatingKVCache`."""

    def __init__(self, owner: PagedKv, layer: int, window: int) -> None:
        self._owner = owner
        self._layer = layer
        self._window = window
        self._output: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Position of the step's first token: one for all rows, or an array with one for each."""
        return self._owner.offset

    @property
    def state(self) -> list[mx.array]:
        """What must be evaluated for this step's keys and values to be in the cache."""
        return [] if self._output is None else [self._output]

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The new keys and values alone: the attention writes them, and finds the others itself."""
        return keys, values

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> CausalMask:
        """mlx-lm's name and arguments. Raises MaskNeeded."""
        if return_array:
            raise MaskNeeded
        return CausalMask(window_size or self._window)

    def attend(
        self, queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: Any, sinks: mx.array | None
    ) -> mx.array:
        """Attention [rows, heads, length, head_dim] of the step's tokens. Raises MaskNeeded."""
        if mask is not None and not isinstance(mask, CausalMask):
            raise MaskNeeded
        window = self._window if mask is None else mask.window
        output: mx.array = self._owner.cache.attend(self._layer, queries, keys, values, scale, window, sinks)
        self._output = output
        return output


class PagedKv:
    """The sequences of a model whose attention layers have these shapes, by their place in the model's cache list."""

    def __init__(self, operations: Any, shapes: Mapping[int, LayerShape], budget: int) -> None:
        self.cache: Any = operations.paged_cache(
            [(shape.kv_heads, shape.head_dim) for shape in shapes.values()], budget
        )
        self.layers = {place: PagedLayer(self, i, shapes[place].window) for i, place in enumerate(shapes)}
        self.offset: int | mx.array = 0

    def open(self) -> int:
        """A new, empty sequence."""
        return self.cache.open()

    def close(self, sequence: int) -> None:
        """Give a sequence's blocks back."""
        self.cache.close(sequence)

    def begin(self, sequences: Sequence[int], count: int) -> None:
        """The next forward pass appends `count` tokens to each sequence. Raises MemoryError beyond the budget."""
        self.cache.begin(list(sequences), count)
        positions = [self.cache.position(sequence) for sequence in sequences]
        self.offset = positions[0] if len(set(positions)) == 1 else mx.array(positions)

    def commit(self) -> None:
        """That pass has been evaluated."""
        self.cache.commit()


def attention(stock: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """mlx-lm's `scaled_dot_product_attention`, which knows the cache, with paged ones served natively."""

    def scaled_dot_product_attention(
        queries: mx.array,
        keys: mx.array,
        values: mx.array,
        cache: Any,
        scale: float,
        mask: Any,
        sinks: mx.array | None = None,
    ) -> mx.array:
        if isinstance(cache, PagedLayer):
            return cache.attend(queries, keys, values, scale, mask, sinks)
        return stock(queries, keys, values, cache, scale=scale, mask=mask, sinks=sinks)

    return scaled_dot_product_attention
