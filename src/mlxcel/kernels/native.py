"""The native extension, if this installation has it."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any


class NativeUnavailable(Exception):
    """There is no native extension here; the message says why."""


@cache
def module() -> Any:
    """`mlxcel._kernels`. Raises NativeUnavailable."""
    return _load("_kernels")


@cache
def operations_module() -> Any:
    """`mlxcel._mlx_kernels`, the kernels as operations on MLX arrays. Raises NativeUnavailable."""
    mlx: Any = importlib.import_module("mlx.core")  # loads the library that the module needs
    # Asked of the other module: this one may not even load under another MLX.
    built_for = module().mlx_version
    if built_for != mlx.__version__:
        reason = f"they were built for MLX {built_for}, and this is {mlx.__version__}"
        raise NativeUnavailable(f"no native kernels for MLX: {reason}")
    return _load("_mlx_kernels")


def _load(name: str) -> Any:
    try:
        return importlib.import_module(f"mlxcel.{name}")
    except ImportError as error:
        raise NativeUnavailable(f"no native kernels: {_build_note(name) or error}") from error


def _build_note(name: str) -> str:
    """Why the installation built none; empty when it says nothing."""
    note = Path(__file__).parents[1] / f"{name}_build.txt"
    return note.read_text().partition("\n")[0] if note.is_file() else ""


def instruction_set() -> str:
    """The instruction set whose kernels run here. Raises NativeUnavailable, ValueError for a bad MLXCEL_KERNELS."""
    return module().name()


def check_wanted() -> None:
    """Raise ValueError when MLXCEL_KERNELS names kernels that this machine does not have."""
    if os.environ.get("MLXCEL_KERNELS") != "mlx":
        with suppress(NativeUnavailable):
            instruction_set()


def counted(threads: int) -> str:
    """A number of threads in words."""
    return "1 thread" if threads == 1 else f"{threads} threads"


def default_threads() -> int:
    """One thread for each processor this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
