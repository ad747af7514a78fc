"""Keys and values in fewer bits: mlx-lm's plain caches with MLX's affine quantisation around them.

What is stored is one array of words, quantised values with their scales and biases behind them, so everything that
mlx-lm does with its caches (grow, cut, batch) stays as it is. Each step unpacks one layer at a time.
"""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from mlxcel.engine.cache.around import CacheAround

GROUP = 32
"""Elements with a scale of their own."""


_NAMES = {mx.bfloat16: "bf16", mx.float16: "fp16", mx.float32: "fp32"}


def type_name(dtype: mx.Dtype) -> str:
    """A type of floats, for people."""
    return _NAMES.get(dtype, str(dtype))


@dataclass(frozen=True, slots=True)
class Packing:
    """How arrays [..., width] are stored.

    bits: of an element; None: as it is.
    """

    bits: int | None
    width: int = 0
    dtype: mx.Dtype = mx.float32

    def pack(self, x: mx.array) -> mx.array:
        if self.bits is None:
            return x
        parts = mx.quantize(x, group_size=GROUP, bits=self.bits)
        return mx.concatenate([part.view(mx.uint16) for part in parts], axis=-1)

    def unpack(self, words: mx.array) -> mx.array:
        if self.bits is None:
            return words
        values, scales = self.width * self.bits // 16, self.width // GROUP * (self.dtype.size // 2)
        quantised, scale, bias = mx.split(words, [values, values + scales], axis=-1)
        return mx.dequantize(
            quantised.view(mx.uint32),
            scale.view(self.dtype),
            bias.view(self.dtype),
            group_size=GROUP,
            bits=self.bits,
        )

    def __deepcopy__(self, memo: Any) -> Packing:
        return self  # MLX's types cannot be copied, and nothing here changes

    def of(self, x: mx.array) -> Packing:
        """The same for arrays like `x`."""
        return Packing(self.bits, x.shape[-1], x.dtype)


class QuantisedCache(CacheAround):
    """Stands where mlx-lm has a `KVCache`, or a batch of them.

    inner: the cache that stores words.
    """

    def __init__(self, inner: Any, keys: Packing, values: Packing) -> None:
        super().__init__(inner)
        self._keys = keys
        self._values = values

    @property
    def mode(self) -> str:
        """What keys and values are stored as, for people."""
        both = (self._keys, self._values)
        names = [f"int{packing.bits}" if packing.bits else type_name(packing.dtype) for packing in both]
        return names[0] if names[0] == names[1] else "+".join(names)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store new keys and values; all that there are."""
        self._keys, self._values = self._keys.of(keys), self._values.of(values)
        self.inner.update_and_fetch(self._keys.pack(keys), self._values.pack(values))
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All keys and values."""
        keys, values = self.inner.keys_and_values()
        return self._keys.unpack(keys), self._values.unpack(values)

    def merge(self, caches: Sequence[QuantisedCache]) -> QuantisedCache:
        """A batch with a row for each of `caches`."""
        return QuantisedCache(self.inner.merge([cache.inner for cache in caches]), self._keys, self._values)

    def extend(self, other: QuantisedCache) -> None:
        """Append the rows of another batch."""
        self.inner.extend(other.inner)
        if self._keys.width == 0:  # nothing was stored here yet
            self._keys, self._values = other._keys, other._values

    def extract(self, row: int) -> QuantisedCache:
        """One row of a batch, alone."""
        return QuantisedCache(self.inner.extract(row), self._keys, self._values)
