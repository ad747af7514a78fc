"""Faster arithmetic under a loaded model: `install` swaps modules for ones that suit the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from mlxcel.kernels import blas


@dataclass(frozen=True, slots=True)
class Kernels:
    """What `install` did to a model."""

    description: str
    """Which path runs, for people."""
    without_logits: Callable[[], AbstractContextManager[None]]
    """Context in which a forward pass is for its caches only: the output head may be left uncomputed."""


def install(model: nn.Module) -> Kernels:
    """Replace modules of `model` in place by the fastest ones there are for the default device.

    On a GPU, MLX's own kernels are the fast ones and nothing is changed.
    """
    if mx.default_device() == mx.Device(mx.gpu):
        return Kernels(_gpu_name(), nullcontext)
    gate = blas.LogitsGate()
    blas.install(model, gate)
    return Kernels(f"cpu: stock MLX with OpenBLAS matrix products, {blas.threads()} threads", gate.closed)


def _gpu_name() -> str:
    return "Metal" if mx.metal.is_available() else "CUDA"
