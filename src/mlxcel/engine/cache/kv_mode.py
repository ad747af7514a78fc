"""In how many bits keys and values are to be stored."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.config import CacheConfig

BITS = {"f16": None, "fp16": None, "int8": 8, "turbo4": 4, "turbo4-delegated": 4, "turbo3": 3}
"""Of each name, for keys or for values."""


@dataclass(frozen=True, slots=True)
class KvMode:
    """What a layer's keys and values take; None: as many bits as the model computes with."""

    keys: int | None = None
    values: int | None = None
    outer: int = 0
    """So many layers at either end keep their values as they are."""
    skip_last: bool = False
    """The last layer keeps both as they are."""

    @property
    def plain(self) -> bool:
        """Whether nothing is to be packed."""
        return self.keys is None and self.values is None

    def of_layer(self, place: int, layers: int) -> tuple[int | None, int | None]:
        """Bits of keys and of values of one of `layers` layers."""
        if self.skip_last and place == layers - 1:
            return None, None
        outer = place < self.outer or place >= layers - self.outer
        return self.keys, None if outer else self.values


def kv_mode(config: CacheConfig) -> KvMode:
    """What the flags ask for: those for keys or values alone beat those for both."""
    if config.kv_bits is not None:
        keys = values = config.kv_bits
    else:
        first, _, second = config.kv_mode.partition("+")
        values = BITS[second or first]
        keys = None if first == "turbo4-delegated" else BITS[first]
    if config.kv_keys is not None:
        keys = BITS[config.kv_keys]
    if config.kv_values is not None:
        values = BITS[config.kv_values]
    few = values is not None and values < 8 and config.kv_bits is None
    return KvMode(
        keys, values, config.kv_outer_layers if few else 0, config.kv_bits is not None and config.kv_skip_last
    )
