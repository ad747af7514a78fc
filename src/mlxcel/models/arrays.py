"""The few MLX calls that model loading makes, with types, and the choice of one floating-point type for a model."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import mlx.utils
import numpy as np
import numpy.typing as npt

_mx = cast(Any, mx)  # parts of its stubs are untyped
_HALF_TYPES = (mx.float16, mx.bfloat16)


def from_numpy(values: npt.NDArray[np.generic]) -> mx.array:
    """A copy of `values` as an MLX array of the same type."""
    return _mx.array(values)


def evaluate(*trees: object) -> None:
    """Compute every array in `trees` now."""
    _mx.eval(*trees)


def parameters(model: nn.Module) -> dict[str, mx.array]:
    """All parameters of `model` by their dotted path."""
    leaves: list[tuple[str, mx.array]] = cast(Any, mlx.utils).tree_flatten(cast(Any, model).parameters())
    return dict(leaves)


def on_cpu() -> bool:
    """Whether MLX computes on a CPU by default."""
    return mx.default_device() == mx.Device(mx.cpu)


def common_float_type(bytes_of: Counter[mx.Dtype], *, quantised: bool) -> mx.Dtype:
    """The type that all floating-point parameters and activations of a model shall have.

    bytes_of: how much of the checkpoint each type takes. That is the type that takes most, except that quantised
    models compute in float32 on a CPU, where MLX's quantised products are some thirty times slower in a
    half-precision type.
    """
    if quantised and on_cpu():
        return mx.float32
    return bytes_of.most_common(1)[0][0] if bytes_of else mx.float32


def unify_float_types(model: nn.Module) -> None:
    """Give the parameters of a loaded model one half-precision type, or float32 as `common_float_type` says.

    Single float32 parameters of a half-precision model stay: models keep them where the precision matters.
    """
    arrays = parameters(model)
    quantised = any(path.endswith(".scales") for path in arrays)
    sizes: Counter[mx.Dtype] = Counter()
    for array in arrays.values():
        if array.dtype in _HALF_TYPES:
            sizes[array.dtype] += array.nbytes
    target = common_float_type(sizes, quantised=quantised)
    if all(dtype == target for dtype in sizes):
        return

    def convert(array: mx.array) -> mx.array:
        return array.astype(target) if array.dtype in _HALF_TYPES else array

    cast(Any, model).apply(convert)
    evaluate(parameters(model))
