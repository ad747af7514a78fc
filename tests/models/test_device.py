"""Choosing the device."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import mlx.core as mx
import pytest

from mlxcel.models.device import select_device

GPU = mx.Device(mx.gpu)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    before = mx.default_device()
    yield
    mx.set_default_device(before)


def test_cpu_is_the_cpu() -> None:
    assert select_device("cpu") == "cpu"
    assert mx.default_device() == mx.Device(mx.cpu)  # type: ignore[arg-type]


@pytest.mark.parametrize("wanted", ["gpu", "metal", "auto"])
@pytest.mark.parametrize("there", [True, False])
def test_a_gpu_is_used_when_there_is_one(
    wanted: str, there: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chosen: list[mx.Device] = []
    monkeypatch.setattr(mx, "is_available", lambda device: there)
    monkeypatch.setattr(mx, "set_default_device", chosen.append)
    with caplog.at_level(logging.WARNING):
        assert select_device(wanted) == ("gpu" if there else "cpu")
    assert chosen == [GPU if there else mx.Device(mx.cpu)]  # type: ignore[arg-type]
    missed = not there and wanted != "auto"
    assert ("no usable GPU" in caplog.text) == missed, "said only to those who asked for one"
