"""GET /metrics, read by the Prometheus project's own parser."""

from __future__ import annotations

import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mlxcel.config import CacheConfig, EngineConfig, NetworkConfig, ServerConfig

from ..stub import AsgiCall, Served, run, says, serving, until

METRICS = NetworkConfig(metrics=True)
CONTRACT = {
    "mlxcel_requests_total": "counter",
    "mlxcel_prompt_tokens_total": "counter",
    "mlxcel_completion_tokens_total": "counter",
    "mlxcel_generation_time_seconds_total": "counter",
    "mlxcel_slots_total": "gauge",
    "mlxcel_slots_available": "gauge",
    "mlxcel_queue_depth": "gauge",
    "mlxcel_batch_sequences_started": "counter",
    "mlxcel_batch_sequences_completed": "counter",
    "mlxcel_batch_prefill_tokens_total": "counter",
    "mlxcel_batch_decode_tokens_total": "counter",
    "mlxcel_batch_current_size": "gauge",
    "mlxcel_cache_pool_active": "gauge",
}


async def read(served: Served) -> dict[str, float]:
    """Every sample by its name, with the value of its label in brackets."""
    response = await served.http.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert abs(int(response.headers["process-start-time-unix"]) - time.time()) < 300
    samples: dict[str, float] = {}
    for line in response.text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            samples[name] = float(value)
    parsed = [sample for family in text_string_to_metric_families(response.text) for sample in family.samples]
    assert len(parsed) == len(samples)
    return samples


async def counted(served: Served) -> tuple[float, float, float]:
    """Requests, prompt tokens and completion tokens."""
    samples = await read(served)
    return tuple(samples[f"mlxcel_{name}_total"] for name in ("requests", "prompt_tokens", "completion_tokens"))  # type: ignore[return-value]


def test_every_family_of_the_contract_with_its_type_and_help() -> None:
    async def work() -> None:
        async with serving(config=ServerConfig(network=METRICS)) as served:
            lines = (await served.http.get("/metrics")).text.splitlines()
            for name, kind in CONTRACT.items():
                position = lines.index(f"# TYPE {name} {kind}")
                assert lines[position - 1].startswith(f"# HELP {name} ")
                assert lines[position + 1].rsplit(" ", 1)[0] == name
            families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
            assert len(families) == len(set(families))
            theirs = [name.startswith("llamacpp:") for name in families]
            assert any(theirs)
            assert theirs == sorted(theirs, reverse=True), "they come first"

    run(work())


def test_each_answer_counts_once_however_it_is_sent() -> None:
    async def work() -> None:
        async with serving(says("abc"), ServerConfig(network=METRICS)) as served:
            assert await counted(served) == (0, 0, 0)
            prompt = (await served.chat("hi")).json()["usage"]["prompt_tokens"]
            assert await counted(served) == (1, prompt, 3)
            await served.chat("hi", stream=True)
            assert await counted(served) == (2, 2 * prompt, 6)
            await served.chat("hi", stream=True, n=3)
            assert await counted(served) == (3, 3 * prompt, 15)
            await served.complete("hi")
            assert await counted(served) == (4, 3 * prompt + 3, 18)
            await served.complete("hi", stream=True)
            assert await counted(served) == (4, 3 * prompt + 3, 18), "a streamed text completion does not count"
            await served.chat("hi", temperature=-1)
            await served.complete("hi", max_tokens=0)
            assert (await counted(served))[2] == 18
            assert (await read(served))["mlxcel_batch_sequences_completed"] == 8

    run(work())


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_does_not_count(stream: bool) -> None:
    async def work() -> None:
        async with serving(says("a" * 200), ServerConfig(network=METRICS)) as served:
            served.backend.gate.clear()
            messages = [{"role": "user", "content": "hi"}]
            call = AsgiCall(served.app, "/v1/chat/completions", {"messages": messages, "stream": stream})
            await until(lambda: served.snapshot.active_sequences == 1)
            call.leave()
            await call.task
            served.backend.gate.set()
            await served.idle()
            samples = await read(served)
            assert samples["mlxcel_requests_total"] == samples["mlxcel_completion_tokens_total"] == 0
            assert samples["mlxcel_batch_sequences_started"] == 1
            assert samples["mlxcel_batch_sequences_completed"] == 0

    run(work())


@pytest.mark.parametrize("stream", [True, False])
def test_a_failed_generation_does_not_count(stream: bool) -> None:
    async def work() -> None:
        async with serving(says("abc"), ServerConfig(network=METRICS)) as served:
            served.backend.fail_decode = lambda rows: RuntimeError("broken")
            await served.chat("hi", stream=stream)
            assert await counted(served) == (0, 0, 0)

    run(work())


def test_a_server_at_work() -> None:
    async def work() -> None:
        engine = EngineConfig(parallel=1)
        async with serving(says("abc"), ServerConfig(network=METRICS, engine=engine)) as served:
            served.backend.gate.clear()
            calls: list[Any] = [AsgiCall(served.app, "/v1/completions", {"prompt": "hello"}) for _ in range(3)]
            await until(lambda: served.snapshot.current_batch_size == 1 and served.snapshot.queue_depth == 2)
            samples = await read(served)
            assert samples["mlxcel_slots_total"] == 1
            assert samples["mlxcel_slots_available"] == 0
            assert samples["mlxcel_queue_depth"] == samples["llamacpp:requests_deferred"] == 2
            assert samples["mlxcel_batch_current_size"] == samples["mlxcel_cache_pool_active"] == 1
            assert samples["llamacpp:requests_processing"] == 1
            served.backend.gate.set()
            for call in calls:
                await call.task
            await served.idle()
            samples = await read(served)
            assert samples["mlxcel_slots_available"] == 1
            assert samples["mlxcel_queue_depth"] == samples["mlxcel_batch_current_size"] == 0
            assert samples["mlxcel_requests_total"] == samples["mlxcel_batch_sequences_completed"] == 3
            assert samples["mlxcel_batch_decode_tokens_total"] == samples["llamacpp:tokens_predicted_total"] == 9
            assert samples["mlxcel_batch_prefill_tokens_total"] == samples["llamacpp:prompt_tokens_total"] == 18
            # The end token takes a step too.
            assert samples["llamacpp:n_decode_total"] == 3 * 4 + 3
            assert samples["llamacpp:n_busy_slots_per_decode"] == 1
            for name in ("prompt_seconds_total", "tokens_predicted_seconds_total", "predicted_tokens_seconds"):
                assert samples[f"llamacpp:{name}"] > 0

    run(work())


def test_chunks_that_rows_waited_for() -> None:
    async def work() -> None:
        engine = EngineConfig(parallel=2, prefill_chunk_size=8, prefill_grant_interval=2)
        async with serving(says("a" * 100), ServerConfig(network=METRICS, engine=engine)) as served:
            served.backend.gate.clear()
            first = AsgiCall(served.app, "/v1/completions", {"prompt": "hi"})
            await until(lambda: served.snapshot.current_batch_size == 1)
            # A start token and 31 more are read before decoding: on arrival the first 8, then three grants.
            second = AsgiCall(served.app, "/v1/completions", {"prompt": "x" * 32})
            await until(lambda: served.snapshot.queue_depth == 1)
            served.backend.gate.set()
            await first.task
            await second.task
            assert (await read(served))["mlxcel_batch_prefill_grants_total"] == 3

    run(work())


def test_the_prompt_cache_and_its_memory() -> None:
    async def work() -> None:
        cache = CacheConfig(min_prefix=8, kv_budget=None)
        async with serving(says("abc"), ServerConfig(network=METRICS, cache=cache)) as served:
            for _ in range(2):
                await served.complete("x" * 40)
            stats = (await served.http.get("/v1/cache/stats")).json()
            samples = await read(served)
            for name in ("entries", "bytes", "capacity_bytes"):
                assert samples[f"mlxcel_prompt_cache_{name}"] == stats[name] > 0
            assert samples["mlxcel_prompt_cache_hits_total"] == stats["hits"] == 1
            assert samples["mlxcel_prompt_cache_lookups_total"] == stats["lookups"] == 2
            assert samples["mlxcel_prompt_cache_inserts_total"] == stats["inserts"]
            assert samples['mlxcel_prompt_cache_evictions_total{reason="lru"}'] == 0
            assert samples['mlxcel_prompt_cache_reject_total{reason="oversized"}'] == 0
            assert samples["mlxcel_kv_bytes_used"] == stats["kv_bytes_used"] > 0
            assert samples["mlxcel_paged_blocks_used"] == stats["kv_bytes_used"] / stats["kv_block_bytes"]
            assert "mlxcel_kv_bytes_budget" not in samples, "there is none"

    run(work())


def test_it_needs_its_flag_and_a_key() -> None:
    async def work() -> None:
        async with serving() as served:
            assert (await served.http.get("/metrics")).status_code == 404
        async with serving(config=ServerConfig(network=NetworkConfig(metrics=True, api_keys=("k",)))) as served:
            for path in ("/metrics", "/slots"):
                assert (await served.http.get(path)).status_code == 401
                assert (await served.http.get(path, headers={"Authorization": "Bearer k"})).status_code == 200

    run(work())
