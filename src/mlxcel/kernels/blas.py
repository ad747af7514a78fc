"""Matrix products on a CPU through numpy's OpenBLAS.

The BLAS inside MLX's Linux wheel is the reference one, and MLX's quantised product runs on one thread at about 2 GOP/s.
numpy carries OpenBLAS: a float32 product of the same shape runs at 100 GOP/s and more on two cores. So from a few rows
on it pays to dequantise a block of weight rows, multiply, and throw the block away. Below that MLX's own product wins,
because a block is used too little to pay for being unpacked.

The price is that a product is computed when the module is called, not when the graph is evaluated. That costs nothing
on a CPU, but an output head whose result nobody reads would be computed for every prompt token: see `LogitsGate`.
"""

# mlx.nn's layers carry no annotations, so their attributes are unknown to the type checker here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]

MIN_ROWS = 4
"""Rows of activations from which unpacking pays (measured: 2.8 ms to unpack what MLX multiplies in 1 ms a row)."""

BLOCK_ELEMENTS = 1 << 21
"""Weights unpacked at a time: 8 MB of float32, so that memory does not grow by an unpacked output head."""


class LogitsGate:
    """Tells output heads whether anybody will read the logits."""

    def __init__(self) -> None:
        self.open = True

    @contextmanager
    def closed(self) -> Generator[None]:
        """Run a forward pass for its caches only."""
        self.open = False
        try:
            yield
        finally:
            self.open = True


class BlasQuantizedLinear(nn.QuantizedLinear):
    """`nn.QuantizedLinear` for float32 activations [..., in] -> [..., out]. `gate` is set on output heads."""

    gate: LogitsGate | None = None

    def __call__(self, x: mx.array) -> mx.array:
        if _rows(x) < MIN_ROWS or x.dtype != mx.float32 or not _wanted(self.gate):
            return super().__call__(x)
        y = _quantized_product(x, self)
        return y + self.bias if "bias" in self else y


class BlasQuantizedEmbedding(nn.QuantizedEmbedding):
    """`nn.QuantizedEmbedding` whose transposed use, as an output head [..., dims] -> [..., vocabulary], is fast."""

    gate: LogitsGate | None = None

    def as_linear(self, x: mx.array) -> mx.array:
        if _rows(x) < MIN_ROWS or x.dtype != mx.float32 or not _wanted(self.gate):
            return super().as_linear(x)
        return _quantized_product(x, self)


class BlasLinear(nn.Linear):
    """`nn.Linear` for float32 weights and activations [..., in] -> [..., out]. `gate` is set on output heads."""

    gate: LogitsGate | None = None

    def __call__(self, x: mx.array) -> mx.array:
        if x.dtype != mx.float32 or not _wanted(self.gate):
            return super().__call__(x)
        y = _like(x, _matrix(x) @ _numpy(self.weight).T)
        return y + self.bias if "bias" in self else y


class BlasEmbedding(nn.Embedding):
    """`nn.Embedding` with float32 weights whose transposed use, as an output head, is fast."""

    gate: LogitsGate | None = None

    def as_linear(self, x: mx.array) -> mx.array:
        if x.dtype != mx.float32 or not _wanted(self.gate):
            return super().as_linear(x)
        return _like(x, _matrix(x) @ _numpy(self.weight).T)


def install(model: nn.Module, gate: LogitsGate) -> None:
    """Give every float32 product of `model` its fast form, in place."""
    for path, module in model.named_modules():
        fast = _fast_class(module)
        if fast is None:
            continue
        # The same object with another `__call__`: models that reach into a layer for its weights still find them.
        module.__class__ = fast
        if path.rpartition(".")[2] == "lm_head" or isinstance(module, nn.Embedding | nn.QuantizedEmbedding):
            module.gate = gate


def threads() -> int:
    """Threads OpenBLAS uses."""
    return int(os.environ.get("OPENBLAS_NUM_THREADS") or os.cpu_count() or 1)


def _fast_class(module: nn.Module) -> type[nn.Module] | None:
    if type(module) is nn.QuantizedLinear and _affine_float32(module):
        return BlasQuantizedLinear
    if type(module) is nn.QuantizedEmbedding and _affine_float32(module):
        return BlasQuantizedEmbedding
    if type(module) is nn.Linear and module.weight.dtype == mx.float32:
        return BlasLinear
    if type(module) is nn.Embedding and module.weight.dtype == mx.float32:
        return BlasEmbedding
    return None


def _affine_float32(module: nn.QuantizedLinear | nn.QuantizedEmbedding) -> bool:
    return module.mode == "affine" and module.scales.dtype == mx.float32


def _wanted(gate: LogitsGate | None) -> bool:
    return gate is None or gate.open


def _rows(x: mx.array) -> int:
    return x.size // x.shape[-1]


def _matrix(x: mx.array) -> Matrix:
    """Evaluate `x` and see it as [rows, columns], without a copy."""
    return _numpy(x).reshape(-1, x.shape[-1])


def _numpy(x: mx.array) -> Matrix:
    return np.asarray(x)


def _like(x: mx.array, y: Matrix) -> mx.array:
    """`y` [rows, out] with the leading dimensions of `x`."""
    return mx.array(y.reshape(*x.shape[:-1], y.shape[-1]))


def _quantized_product(x: mx.array, module: nn.QuantizedLinear | nn.QuantizedEmbedding) -> mx.array:
    """`x` times the transposed weights, unpacked block by block."""
    matrix = _matrix(x)
    outputs = module.scales.shape[0]
    block = max(1, BLOCK_ELEMENTS // x.shape[-1])
    y = np.empty((matrix.shape[0], outputs), np.float32)
    for start in range(0, outputs, block):
        rows = slice(start, start + block)
        biases = None if module.biases is None else module.biases[rows]
        weights = mx.dequantize(module.weight[rows], module.scales[rows], biases, module.group_size, module.bits)
        np.matmul(matrix, _numpy(weights).T, out=y[:, rows])
    return _like(x, y)
