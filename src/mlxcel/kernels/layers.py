"""Layers of mlx.nn and mlx-lm whose weights are packed for the native kernels.

A packed layer is the same object with another class: models that ask what kind of layer it is get the same answer. Its
weights exist in packed form only.
"""

# mlx.nn's layers carry no annotations, so their attributes are unknown to the type checker here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

BITS = frozenset({2, 3, 4, 5, 6, 8})
GROUPS = frozenset({32, 64, 128})
TILE_OUTPUTS = 16
"""The outputs of an expert must be a multiple of this."""


class Packed:
    """What the packed layers have in common."""

    packed: Any
    """`mlxcel._mlx_kernels.Linear`."""

    @property
    def weight(self) -> mx.array:
        """The weights again, float32, for the few models that look into a layer. Slow: they are unpacked each time."""
        return self.packed.unpacked()


class PackedLinear(Packed, nn.Linear):
    """`nn.Linear`: [..., in] -> [..., out], float32."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.packed(x)


class PackedQuantizedLinear(Packed, nn.QuantizedLinear):
    """`nn.QuantizedLinear`: [..., in] -> [..., out], float32."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.packed(x)


class PackedEmbedding(Packed, nn.Embedding):
    """`nn.Embedding`: ids [...] -> [..., dims], float32; as an output head [..., dims] -> [..., vocabulary]."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.packed.rows(x)

    def as_linear(self, x: mx.array) -> mx.array:
        return self.packed(x)


class PackedQuantizedEmbedding(Packed, nn.QuantizedEmbedding):
    """`nn.QuantizedEmbedding`, as `PackedEmbedding`."""

    def __call__(self, x: mx.array) -> mx.array:
        return self.packed.rows(x)

    def as_linear(self, x: mx.array) -> mx.array:
        return self.packed(x)


_PACKED: dict[type, type] = {
    nn.Linear: PackedLinear,
    nn.QuantizedLinear: PackedQuantizedLinear,
    nn.Embedding: PackedEmbedding,
    nn.QuantizedEmbedding: PackedQuantizedEmbedding,
}
_EXPERTS = frozenset({"SwitchLinear", "QuantizedSwitchLinear"})


def _packed_experts(kind: type[nn.Module]) -> type[nn.Module]:
    """A packed subclass of mlx-lm's `SwitchLinear` or `QuantizedSwitchLinear`.

    x [..., m, in], expert indices [...] -> [..., m, out], float32. Leading dimensions are broadcast.
    """

    def call(self: Any, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        return self.packed.gather(x, indices)

    members = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return cast(type[nn.Module], type(kind.__name__, (Packed, kind), members))


def packed_class(module: nn.Module) -> type[nn.Module] | None:
    """The class that `module` gets when it is packed; None when it cannot be."""
    kind = type(module)
    if kind.__name__ in _EXPERTS and kind.__module__ == "mlx_lm.models.switch_layers":
        packed = _packed_experts(kind) if cast(Any, module).weight.shape[1] % TILE_OUTPUTS == 0 else None
    else:
        packed = _PACKED.get(kind)
    if packed is None or not _packable(module):
        return None
    return packed


def pack(module: nn.Module, packed: type[nn.Module], operations: Any) -> None:
    """Turn `module` into a `packed` one, and let go of its weights.

    operations: `mlxcel._mlx_kernels.Operations`.
    """
    layer = cast(Any, module)
    bias = layer.get("bias")
    if "scales" in layer:
        linear = operations.pack(
            layer.weight, layer.scales, layer.biases, bits=layer.bits, group=layer.group_size, bias=bias
        )
    else:
        linear = operations.pack(layer.weight, bias=bias)
    for name in ("weight", "scales", "biases", "bias"):
        layer.pop(name, None)
    layer.__class__ = packed
    layer.packed = linear


def _packable(module: nn.Module) -> bool:
    layer = cast(Any, module)
    if "scales" in layer:
        affine = layer.mode == "affine" and layer.bits in BITS and layer.group_size in GROUPS
        return affine and layer.get("biases") is not None
    return mx.issubdtype(layer.weight.dtype, mx.floating)
