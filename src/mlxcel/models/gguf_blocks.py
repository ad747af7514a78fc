"""GGUF's block formats as MLX affine quantisation: the same numbers in another order, nothing rounded.

A block holds 32 values of one row behind a float16 scale `d` (Q4_1: and a float16 minimum `m`). MLX keeps the
integers in one uint32 array, scales and biases in arrays of their own, and reads a value as
`scale * integer + bias` with one pair for each 32 values. Block layouts: ggml's `ggml-common.h`
(https://github.com/ggml-org/ggml).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlxcel.models.gguf import TensorInfo, TensorType

GROUP_SIZE = 32
"""Values that share a scale, in every supported format."""

_PIECE_BLOCKS = 1 << 15  # temporaries of the repacking stay in the processor's cache

_BITS = {TensorType.Q4_0: 4, TensorType.Q4_1: 4, TensorType.Q8_0: 8}
_DENSE_DTYPES = {
    TensorType.F32: np.dtype("<f4"),
    TensorType.F16: np.dtype("<f2"),
    TensorType.BF16: np.dtype("<u2"),
}
_RECORDS = {
    TensorType.Q4_0: np.dtype([("d", "<f2"), ("values", "V16")]),
    TensorType.Q4_1: np.dtype([("d", "<f2"), ("m", "<f2"), ("values", "V16")]),
    TensorType.Q8_0: np.dtype([("d", "<f2"), ("values", "V32")]),
}


@dataclass(frozen=True, slots=True)
class AffineWeight:
    """A quantised matrix in MLX's layout."""

    bits: int
    weight: npt.NDArray[np.uint32]
    """[rows, columns * bits / 32], lowest bits first."""
    scales: npt.NDArray[np.float16]
    """[rows, columns / 32]"""
    biases: npt.NDArray[np.float16] | int
    """[rows, columns / 32], or the whole number that times the scale is the bias."""


def quantised_bits(kind: TensorType) -> int | None:
    """Bits of one quantised value; None for the dense types."""
    return _BITS.get(kind)


def dense(tensor: TensorInfo, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.generic]:
    """The values of a dense tensor as they are stored; bfloat16, which numpy lacks, as its bits in uint16."""
    return data.view(_DENSE_DTYPES[tensor.type]).reshape(tensor.shape)


def affine(tensor: TensorInfo, data: npt.NDArray[np.uint8]) -> AffineWeight:
    """A quantised tensor of two dimensions in MLX's layout."""
    rows, columns = tensor.shape
    groups = (rows, columns // GROUP_SIZE)
    blocks = data.view(_RECORDS[tensor.type])
    scales = np.ascontiguousarray(blocks["d"]).reshape(groups)
    bits = _BITS[tensor.type]
    unpack = _unpack_8 if bits == 8 else _unpack_4
    weight = unpack(blocks).view(np.uint32).reshape(rows, columns * bits // 32)
    if tensor.type is TensorType.Q4_1:
        return AffineWeight(bits, weight, scales, np.ascontiguousarray(blocks["m"]).reshape(groups))
    # Stored integers have their zero in the middle of the range, MLX's at its low end.
    return AffineWeight(bits, weight, scales, -(1 << (bits - 1)))


def _unpack_8(blocks: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Signed bytes in order: -128...127 becomes 0...255 by turning the highest bit."""
    return np.ascontiguousarray(blocks["values"]).view(np.uint64) ^ np.uint64(0x8080808080808080)


def _unpack_4(blocks: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Byte i of a block holds value i in its low half and value i + 16 in its high half. MLX wants value 2i and
    value 2i + 1 in byte i, so the low halves of two neighbouring bytes become one byte, and so do the high ones.
    """
    packed = np.empty((len(blocks), 2), np.uint64)
    for start in range(0, len(blocks), _PIECE_BLOCKS):
        piece = slice(start, start + _PIECE_BLOCKS)
        pairs = np.ascontiguousarray(blocks["values"][piece]).view(np.uint16)
        shifted = pairs >> 4
        low = (pairs & 0x000F) | (shifted & 0x00F0)
        high = (shifted & 0x000F) | ((pairs >> 8) & 0x00F0)
        packed[piece, 0] = low.astype(np.uint8).view(np.uint64)
        packed[piece, 1] = high.astype(np.uint8).view(np.uint64)
    return packed
