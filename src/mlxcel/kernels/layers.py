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
FLOAT_MODES = frozenset({"mxfp4", "mxfp8", "nvfp4"})
E8M0_BIAS = 127
TILE_OUTPUTS = 16
"""The outputs of an expert must be a multiple of this."""


class Packed:
    """What the packed layers have in common."""

    packed: Any
    """`mlxcel._mlx_kernels.Linear`."""
    _bias: mx.array | None
    """What the layer had beside its weights."""

    @property
    def weight(self) -> mx.array:
        """The weights again, float32, for the few models that look into a layer. Slow: they are unpacked each time."""
        return self.packed.unpacked()

    @weight.deleter
    def weight(self) -> None:
        """Called by `nn.Module` when a model gives the layer other weights: it is an ordinary one from then on."""
        if not isinstance(self, PackedLinear):
            raise AttributeError("the weights of this layer are packed")
        layer = cast(Any, self)
        layer.__class__ = nn.Linear
        if self._bias is not None:
            layer.bias = self._bias
        del layer.packed


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
_HEADS = frozenset({"MultiLinear", "QuantizedMultiLinear"})


def _packed_experts(kind: type[nn.Module]) -> type[nn.Module]:
    """A packed subclass of mlx-lm's `SwitchLinear` or `QuantizedSwitchLinear`.

    x [..., m, in], expert indices [...] -> [..., m, out], float32. Leading dimensions are broadcast.
    """

    def call(self: Any, x: mx.array, indices: mx.array, sorted_indices: bool = False) -> mx.array:
        return self.packed.gather(x, indices)

    members = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return cast(type[nn.Module], type(kind.__name__, (Packed, kind), members))


def _packed_heads(kind: type[nn.Module]) -> type[nn.Module]:
    """A packed subclass of mlx-lm's `MultiLinear` or `QuantizedMultiLinear`: a matrix [out, in] for each head.

    x [..., heads or 1, m, in] -> [..., heads, m, out], float32; not transposed, from out to in. That direction has
    weights of its own, made when they are first asked for: groups of quantised ones do not turn around.
    """

    def call(self: Any, x: mx.array, transpose: bool = True) -> mx.array:
        if transpose:
            return self.packed.gather(x, self._heads)
        if self._turned is None:
            self._turned = self._pack(mx.contiguous(self.packed.unpacked().swapaxes(-1, -2)).astype(self._turned_type))
        return self._turned.gather(x, self._heads)

    members = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return cast(type[nn.Module], type(kind.__name__, (Packed, kind), members))


def packed_class(module: nn.Module) -> type[nn.Module] | None:
    """The class that `module` gets when it is packed; None when it cannot be."""
    kind = type(module)
    if kind.__name__ in _EXPERTS and kind.__module__ == "mlx_lm.models.switch_layers":
        packed = _packed_experts(kind) if cast(Any, module).weight.shape[1] % TILE_OUTPUTS == 0 else None
    elif kind.__name__ in _HEADS and kind.__module__ == "mlx_lm.models.mla":
        packed = _packed_heads(kind) if all(size % TILE_OUTPUTS == 0 for size in _sizes(module)) else None
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
    if "scales" not in layer:
        linear = operations.pack(layer.weight, bias=bias)
    elif layer.mode == "affine":
        quantised = (layer.weight, layer.scales, layer.biases)
        linear = operations.pack(*quantised, bits=layer.bits, group=layer.group_size, bias=bias)
    elif layer.mode == "mxfp4":
        linear = operations.pack(*mxfp4_as_affine(layer.weight, layer.scales), bits=8, group=32, bias=bias)
    else:
        linear = operations.pack(_dense(layer), bias=bias)
    if type(module).__name__ in _HEADS:
        layer._heads = mx.arange(layer.weight.shape[0])
        layer._turned, layer._pack = None, operations.pack
        layer._turned_type = layer.weight.dtype if "scales" not in layer else mx.float32
    for name in ("weight", "scales", "biases", "bias", "global_scale"):
        layer.pop(name, None)
    layer.__class__ = packed
    layer.packed, layer._bias = linear, bias


def mxfp4_as_affine(words: mx.array, scales: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """The same matrices as words [..., cols / 4], scales and biases [..., cols / 32] of 8 bits in groups of 32.

    words [..., cols / 8] hold 4-bit floats (E2M1), scales [..., cols / 32] exponents (E8M0), as the OCP
    Microscaling Formats specification has them. Twice such a float is a whole number from -12 to 12: nothing is lost.
    """
    doubled = [0, 1, 2, 3, 4, 6, 8, 12]
    table = mx.array([12 + value for value in doubled] + [12 - value for value in doubled], mx.uint8)
    pairs = words.view(mx.uint8)
    nibbles = mx.stack([pairs & 15, pairs >> 4], axis=-1).flatten(-2)
    scale = mx.power(2.0, scales.astype(mx.float32) - (E8M0_BIAS + 1))
    return table[nibbles].view(mx.uint32), scale, -12 * scale


def _dense(layer: Any) -> mx.array:
    """The weights of a quantised layer in bfloat16, for modes whose groups or values the kernels cannot hold."""
    options: dict[str, Any] = {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
    of_all = layer.get("global_scale")
    if of_all is None:
        return mx.dequantize(layer.weight, layer.scales, dtype=mx.bfloat16, **options)
    experts = zip(layer.weight, layer.scales, of_all, strict=True)
    return mx.stack([mx.dequantize(w, s, global_scale=g, dtype=mx.bfloat16, **options) for w, s, g in experts])


def _sizes(module: Any) -> tuple[int, int]:
    """Outputs and inputs of each matrix of a module."""
    groups = module.get("scales")
    inputs = module.weight.shape[-1] if groups is None else groups.shape[-1] * module.group_size
    return module.weight.shape[-2], inputs


def _packable(module: nn.Module) -> bool:
    layer = cast(Any, module)
    if "scales" not in layer:
        return mx.issubdtype(layer.weight.dtype, mx.floating)
    if layer.mode == "affine":
        return layer.bits in BITS and layer.group_size in GROUPS and layer.get("biases") is not None
    return layer.mode in FLOAT_MODES
