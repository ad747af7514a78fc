"""What the modules of an MLX model say about themselves: linear layers, norms and rotary embeddings.

Everything is decided by exact class. A module of another class raises `UnsupportedError`: it may look the same and
compute something else.
"""

# mlx.nn's layers carry no annotations, so their attributes are unknown to the type checker here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from mlxcel.kernels import native

Floats = npt.NDArray[np.float32]


class UnsupportedError(Exception):
    """The native decoder cannot run this; the message says what."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some outputs of a linear layer, or all of them."""

    module: Any
    which: slice | npt.NDArray[np.intp] | None = None


@dataclass(frozen=True, slots=True)
class Rope:
    """A rotary embedding: angles a position and a factor. `interleaved`: neighbours turn together."""

    frequencies: tuple[float, ...]
    magnitude: float
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm's kind (`rms` or `layer`) and weights; None stands for ones, or for zeros in `bias`."""

    kind: str
    eps: float
    weight: Floats | None
    bias: Floats | None = None


def class_name(module: Any) -> str:
    """Module and name of the class, without the packages that models come from."""
    kind = cast(type[Any], type(module))
    return f"{kind.__module__.removeprefix('mlx_lm.models.')}.{kind.__name__}"


def check_children(module: nn.Module, known: Sequence[str]) -> None:
    """Raise UnsupportedError when `module` holds weights or modules beside those of these names."""
    for name, value in module.items():
        if isinstance(value, nn.Module | mx.array) and name not in known:
            raise UnsupportedError(f"{class_name(module)} has a part '{name}'")


def check_linear(rows: Sequence[Rows]) -> None:
    """Raise UnsupportedError unless these can be packed as one matrix."""
    first = rows[0].module
    for part in rows:
        module = part.module
        if type(module) in (nn.QuantizedLinear, nn.QuantizedEmbedding):
            known = module.mode == "affine" and module.bits in (2, 3, 4, 5, 6, 8)
            if not known or module.group_size not in (32, 64, 128):
                raise UnsupportedError(f"quantisation {module.mode}, {module.bits} bits in {module.group_size}")
            check_children(module, ("weight", "scales", "biases", "bias"))
        elif type(module) in (nn.Linear, nn.Embedding):
            check_children(module, ("weight", "bias"))
        else:
            raise UnsupportedError(f"a {class_name(module)}")
        if getattr(module, "group_size", 0) != getattr(first, "group_size", 0):
            raise UnsupportedError("matrices of one product that are quantised in different groups")


def shape_of(module: Any) -> tuple[int, int]:
    """Outputs and inputs of a linear layer."""
    outputs, inputs = cast(tuple[int, int], module.weight.shape)
    return outputs, inputs if "scales" not in module else module.scales.shape[1] * module.group_size


def linear(rows: Sequence[Rows]) -> Any:
    """Linear layers as one for the native side, without a copy where all rows are taken."""
    biases: list[Floats] = []
    if any("bias" in part.module for part in rows):
        for part in rows:
            bias = part.module.bias if "bias" in part.module else mx.zeros(shape_of(part.module)[0])
            biases.append(_chosen(floats(bias), part))
    return native.module().Linear([matrix(part) for part in rows], np.concatenate(biases) if biases else None)


def matrix(rows: Rows) -> Any:
    """A module's weights as the native side reads them."""
    made, module = native.module().Matrix, rows.module
    if "scales" not in module:
        return made(_array(module.weight, rows))
    scales, biases = _array(module.scales, rows), _array(module.biases, rows)
    return made(_array(module.weight, rows), scales, biases, module.bits, module.group_size)


def _array(array: mx.array, rows: Rows) -> npt.NDArray[Any]:
    """numpy has no bfloat16: its bits are handed over as uint16."""
    seen = np.asarray(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
    return np.ascontiguousarray(_chosen(seen, rows))


def _chosen(array: npt.NDArray[Any], rows: Rows) -> npt.NDArray[Any]:
    return array if rows.which is None else array[rows.which]


def floats(array: mx.array) -> Floats:
    """A copy in float32, in one dimension."""
    return np.array(array.astype(mx.float32), dtype=np.float32).reshape(-1)


_NORMS = {
    "mlx.nn.layers.normalization.RMSNorm": ("rms", 0.0),
    "mlx.nn.layers.normalization.LayerNorm": ("layer", 0.0),
    "gemma.RMSNorm": ("rms", 1.0),
    "gemma2.RMSNorm": ("rms", 1.0),
    "gemma3_text.RMSNorm": ("rms", 1.0),
    "nemotron.NemotronLayerNorm1P": ("layer", 1.0),
}
"""Kind, and what is added to the weights."""


def norm(module: Any) -> Norm:
    """The norm of a whole row, or of one head."""
    if class_name(module) not in _NORMS:
        raise UnsupportedError(f"a {class_name(module)}")
    kind, offset = _NORMS[class_name(module)]
    check_children(module, ("weight", "bias"))
    weight = floats(module.weight) + np.float32(offset) if "weight" in module else None
    return Norm(kind, float(module.eps), weight, floats(module.bias) if "bias" in module else None)


def norm_by_head(module: Any) -> Norm | None:
    """The norm of each head with weights of its own, one head after the other; None when it is not such a one."""
    if class_name(module) == "cohere.LayerNorm2D":
        return Norm("layer", float(module.eps), floats(module.weight))
    if class_name(module) == "stablelm.LayerNormPerHead":
        return Norm("layer", float(module.eps), np.concatenate([floats(norm.weight) for norm in module.norms]))
    return None


def rope(module: Any) -> Rope | None:
    """A rotary embedding whose angles depend on the position alone; None for one that does nothing."""
    match class_name(module):
        case "smollm3.NoPE":
            return None
        case "mlx.nn.layers.positional_encoding.RoPE":
            steps = np.arange(0, module.dims, 2, dtype=np.float64) / module.dims
            turns = module.scale * float(module.base) ** -steps
            return Rope(tuple(turns.tolist()), 1.0, bool(module.traditional))
        case "rope_utils.Llama3RoPE" | "rope_utils.ProportionalRoPE":
            return Rope(_frequencies(module), 1.0, bool(module.traditional))
        case "rope_utils.YarnRoPE":
            return Rope(_frequencies(module), float(module.mscale), bool(module.traditional))
        case "rope_utils.SuScaledRoPE":
            return Rope(_frequencies(module), float(module._scale), False)
        case name:
            raise UnsupportedError(f"a {name}")


def _frequencies(module: Any) -> tuple[float, ...]:
    """mlx-lm calls the periods frequencies."""
    return tuple((1.0 / np.array(module._freqs, np.float64)).tolist())
