"""Faster arithmetic under a loaded model: `install` swaps modules for ones that suit the device."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxcel.kernels import blas, native, operations
from mlxcel.kernels.progress import Report

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernels:
    """What `install` did to a model."""

    description: str
    """Which path runs, for people."""
    without_logits: Callable[[], AbstractContextManager[None]]
    """Context in which a forward pass is for its caches only: the output head may be left uncomputed."""
    operations: Any = None
    """`mlxcel._mlx_kernels.Operations` where the model runs on the native CPU kernels."""


def stock_wanted() -> bool:
    """Whether the environment asks for MLX's own arithmetic on a CPU: MLXCEL_KERNELS=mlx."""
    return os.environ.get("MLXCEL_KERNELS") == "mlx"


def install(
    model: nn.Module,
    *,
    threads: int | None = None,
    precision: str = "default",
    stock: bool | None = None,
    progress: Report | None = None,
) -> Kernels:
    """Replace modules of any mlx-lm `model` in place by the fastest ones there are for the default device.

    On a GPU, MLX's own kernels are the fast ones and nothing is changed. On a CPU the layers' weights are packed for
    the native kernels, and activations become float32; where there are none, OpenBLAS does the matrix products.
    threads: of the native kernels; None: one for each processor. precision: of their products with quantised weights,
    `default`, `fast` or `exact`. stock: leave the native kernels out; None: if
    the environment says so. progress: called with a few words every few seconds while they are packed.
    """
    if mx.default_device() == mx.Device(mx.gpu):
        return Kernels(_gpu_name(), nullcontext)
    if not (stock_wanted() if stock is None else stock):
        threads = threads or native.default_threads()
        try:
            installed = operations.install(model, threads=threads, precision=precision, progress=progress)
        except native.NativeUnavailable as reason:
            log.warning("%s: models run on this CPU 10 to 50 times slower than they could", reason)
        else:
            name, count = native.operations_module().name(), native.counted(threads)
            return Kernels(f"cpu: {name} in MLX graphs, {count}, {precision} precision", nullcontext, installed)
    gate = blas.LogitsGate()
    blas.install(model, gate)
    return Kernels(f"cpu: stock MLX with OpenBLAS matrix products, {native.counted(blas.threads())}", gate.closed)


def _gpu_name() -> str:
    return "Metal" if mx.metal.is_available() else "CUDA"
