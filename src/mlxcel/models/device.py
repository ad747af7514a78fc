"""Which device MLX computes on."""

from __future__ import annotations

import logging

import mlx.core as mx

log = logging.getLogger(__name__)


def select_device(wanted: str) -> str:
    """Make `wanted` (`gpu`, `metal`, `cpu`) MLX's default device and return the one in use: `gpu` or `cpu`.

    Without a usable GPU it is the CPU, with a line that says so when a GPU was asked for by name.
    """
    if wanted in ("gpu", "metal", "auto") and mx.is_available(mx.Device(mx.gpu)):
        mx.set_default_device(mx.Device(mx.gpu))
        return "gpu"
    if wanted in ("gpu", "metal"):
        log.warning("no usable GPU (this MLX build has neither Metal nor a CUDA device): running on the CPU")
    mx.set_default_device(mx.Device(mx.cpu))
    return "cpu"
