"""Many requests of all kinds at once, on the default model; afterwards the server is where it was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.mixture import send_mixture

from .server import ServerProcess, server

pytestmark = pytest.mark.real_model
REQUESTS, WARM_UP, CLIENTS = 200, 100, 8


@pytest.fixture(scope="module")
def running(default_model_path: Path) -> Iterator[ServerProcess]:
    # A small cache is full after the warm-up, and goes on changing.
    small = ("--prompt-cache-capacity-bytes", "16M")
    with server("--model", default_model_path, "--metrics", "--ctx-size", "8192", *small) as process:
        yield process


def get(running: ServerProcess, path: str) -> Any:
    return httpx.get(running.url + path, timeout=60).json()


def counters(running: ServerProcess) -> dict[str, float]:
    text = httpx.get(f"{running.url}/metrics", timeout=60).text
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def send(running: ServerProcess, seed: int, requests: int) -> dict[str, int]:
    """Send them, and wait until the last cancelled one has left its slot."""
    counts = asyncio.run(send_mixture(running.url, seed, CLIENTS, lambda begun: begun < requests))
    deadline = time.monotonic() + 60
    while get(running, "/health")["batch"] != {"active_sequences": 0, "queue_depth": 0, "max_batch_size": 4}:
        assert time.monotonic() < deadline, get(running, "/health")
        time.sleep(0.05)
    return counts


def rest(running: ServerProcess) -> tuple[Any, ...]:
    """What must be the same after any work, once the cache is empty again: cache and slots."""
    before = httpx.post(f"{running.url}/v1/cache/reset", timeout=60).json()
    assert before["entries"] > 0
    assert before["bytes"] == before["kv_bytes_used"] <= before["capacity_bytes"]
    stats = get(running, "/v1/cache/stats")
    health = get(running, "/health")["observability"]
    slots = [slot["state"] for slot in get(running, "/slots")]
    return (
        (stats["entries"], stats["bytes"], stats["kv_bytes_used"]),
        (health["current_batch_size"], health["cache_pool_active"]),
        slots,
    )


def test_two_hundred_requests_leave_nothing_behind(running: ServerProcess) -> None:
    process = psutil.Process(running.process.pid)
    send(running, 1, WARM_UP)
    at_rest, before = rest(running), counters(running)
    memory, files, threads = process.memory_info().rss, process.num_fds(), process.num_threads()
    assert at_rest == ((0, 0, 0), (0, 0), ["idle"] * 4)

    counts = send(running, 2, REQUESTS)

    after = counters(running)
    assert rest(running) == at_rest
    assert process.num_threads() <= threads + 8, "helpers of the event loop are made when they are first needed"
    growth = process.memory_info().rss - memory  # now that the cache is empty, as it was before
    assert process.num_fds() < files + 5, "connections of this very moment may still be open, those of 200 requests not"
    assert growth < 24e6, f"{growth / 1e6:.0f} MB"
    assert all(counts[kind] > 5 for kind in ("chat", "text", "streamed text", "cancelled", "refused"))
    change = {name: after[name] - before[name] for name in after}
    assert change["mlxcel_requests_total"] == counts["chat"] + counts["text"]
    started, completed = (change[f"mlxcel_batch_sequences_{name}_total"] for name in ("started", "completed"))
    # A request with several choices is one request and several sequences.
    assert completed >= counts["chat"] + counts["text"] + counts["streamed text"]
    cancelled = started - completed
    assert counts["cancelled"] <= cancelled <= counts["cancelled"] + counts["cancelled early"]
    assert after["mlxcel_slots_available"] == after["mlxcel_slots_total"] == 4
    assert after["mlxcel_queue_depth"] == 0
