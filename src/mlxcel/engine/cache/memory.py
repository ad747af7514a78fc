"""How much memory there is for keys and values."""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
import resource
from pathlib import Path

import mlx.core as mx

_MEMINFO = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_OWN_GROUPS = Path("/proc/self/cgroup")
_CONTAINERS = (
    (Path("/sys/fs/cgroup"), r"^0::/(.*)", "memory.max", "memory.current", "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory"),
        r"^\d+:(?:.*,)?memory(?:,.*)?:/(.*)",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
"""The root, the line of this process, limit, use, and what of the use could be given back at once, in both versions of
control groups."""


def free_memory() -> int | None:
    """Bytes that the default device has left, the weights loaded by now not counted; None: unknown."""
    if mx.default_device() == mx.Device(mx.gpu):
        info = mx.device_info()
        total = info.get("max_recommended_working_set_size") or info.get("total_memory") or info.get("memory_size")
        return None if total is None else max(0, int(total) - mx.get_active_memory())
    known = [_available(), _addressable()]
    for root, line, *files in _CONTAINERS:
        known += [_left(folder, *files) for folder in _groups(root, line)]
    return min((free for free in known if free is not None), default=None)


def _available() -> int | None:
    return _number(_MEMINFO, r"^MemAvailable:\s+(\d+) kB", scale=1024)


def _addressable() -> int | None:
    """What a limit on the address space (`ulimit -v`) leaves."""
    most, used = resource.getrlimit(resource.RLIMIT_AS)[0], _number(_STATUS, r"^VmSize:\s+(\d+) kB", scale=1024)
    return None if most == resource.RLIM_INFINITY or used is None else max(0, most - used)


def _groups(root: Path, line: str) -> list[Path]:
    """The folders of the control groups that this process is in, from its own one to the root: each may have a limit.
    In a container the root is its own, and the path that the process sees may not be there."""
    try:
        found = re.search(line, _OWN_GROUPS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    own = root if found is None else root / found[1]
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]


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
