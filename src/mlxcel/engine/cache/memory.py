"""How much memory there is for keys and values."""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx

_MEMINFO = Path("/proc/meminfo")
_CONTAINERS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, use, and what of the use could be given back at once, in both versions of control groups."""


def free_memory() -> int | None:
    """Bytes that the default device has left, the weights loaded by now not counted; None: unknown."""
    if mx.default_device() == mx.Device(mx.gpu):
        info = mx.device_info()
        total = info.get("max_recommended_working_set_size") or info.get("total_memory") or info.get("memory_size")
        return None if total is None else max(0, int(total) - mx.get_active_memory())
    known = [_available(), *(_left(*container) for container in _CONTAINERS)]
    return min((free for free in known if free is not None), default=None)


def _available() -> int | None:
    return _number(_MEMINFO, r"^MemAvailable:\s+(\d+) kB", scale=1024)


def _left(folder: Path, limit: str, used: str, spare: str) -> int | None:
    most, now = _number(folder / limit), _number(folder / used)
    if most is None or now is None:
        return None
    return max(0, most - now + (_number(folder / "memory.stat", rf"^{spare} (\d+)") or 0))


def _number(file: Path, pattern: str = r"(\d+)\s*", scale: int = 1) -> int | None:
    """The number in a file; None when there is no such file, or none in it."""
    try:
        found = re.search(pattern, file.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * scale
