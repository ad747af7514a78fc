"""How much memory there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlxcel.engine.cache import memory


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       9000 kB\nMemFree:  1 kB\nMemAvailable:   8000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    container = (tmp_path, r"^0::/(.*)", "max", "current", "inactive_file")
    monkeypatch.setattr(memory, "_CONTAINERS", (container, (tmp_path / "none", *container[1:])))
    monkeypatch.setattr(memory, "_OWN_GROUPS", tmp_path / "groups")
    return tmp_path


def test_it_is_what_the_system_can_give(machine: Path) -> None:
    assert memory.free_memory() == 8000 << 10


def test_a_container_has_less(machine: Path) -> None:
    (machine / "max").write_text("5000000\n")
    (machine / "current").write_text("3000000\n")
    assert memory.free_memory() == 2_000_000
    (machine / "memory.stat").write_text("anon 7\ninactive_file 500000\nactive_file 9\n")
    assert memory.free_memory() == 2_500_000, "what is only read from files does not count"
    (machine / "max").write_text("max\n")
    assert memory.free_memory() == 8000 << 10


def test_each_group_above_may_have_a_limit(machine: Path) -> None:
    (machine / "groups").write_text("3:cpu:/other\n0::/system/server\n")
    own = machine / "system" / "server"
    own.mkdir(parents=True)
    for folder, most, now in ((own, "max", 10), (own.parent, "6000000", 4_000_000), (machine, "9000000", 1_000_000)):
        (folder / "max").write_text(most)
        (folder / "current").write_text(str(now))
    assert memory.free_memory() == 2_000_000
    (own / "max").write_text("1000")
    assert memory.free_memory() == 990


def test_a_limited_address_space_has_less(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = machine / "status"
    status.write_text("VmPeak:\t 9 kB\nVmSize:\t 3000 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    monkeypatch.setattr(memory.resource, "getrlimit", lambda kind: (5000 << 10, -1))
    assert memory.free_memory() == 2000 << 10


def test_it_may_be_unknown(machine: Path) -> None:
    (machine / "meminfo").unlink()
    assert memory.free_memory() is None


def test_this_machine_has_some() -> None:
    free = memory.free_memory()
    assert free is None or free > 1 << 20
