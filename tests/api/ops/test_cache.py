"""GET /v1/cache/stats and POST /v1/cache/reset."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.api.app import create_app
from mlxcel.config import CacheConfig, ServerConfig
from mlxcel.engine.backend import Backend
from mlxcel.engine.engine import Engine

from ..stub import client, network, run, says, serving

PROMPT = "A prompt that is long enough to be worth keeping. "


def test_the_numbers_and_the_reset() -> None:
    async def work() -> None:
        async with serving() as served:
            for _ in range(2):
                await served.complete(PROMPT)
            await served.idle()
            stats = (await served.http.get("/v1/cache/stats")).json()
            assert dict(list(stats.items())[:18]) == {
                "enabled": True,
                "apc_enabled": True,
                "block_size": 16,
                "hash": "sha256",
                "entries": 1,
                "bytes": 8000,  # a start token, the prompt, and the answer
                "capacity_bytes": 2 << 30,
                "max_entries": 1024,
                "hits": 1,
                "lookups": 2,
                "hit_rate": 0.5,
                "inserts": 1,
                "evictions_lru": 0,
                "evictions_ttl": 0,
                "rejections_oversized": 0,
                "total_blocks_stored": 3,
                "unique_block_hashes": 3,
                "apc_active_entries": 1,
            }
            assert (await served.http.post("/v1/cache/reset")).json() == stats
            assert (await served.http.post("/v1/cache/reset")).json()["entries"] == 0
            empty = (await served.http.get("/v1/cache/stats")).json()
            assert (empty["entries"], empty["bytes"], empty["kv_bytes_used"], empty["hits"]) == (0, 0, 0, 1)

    run(work())


def test_without_a_cache_the_answer_has_the_same_shape() -> None:
    async def work() -> None:
        async with serving(config=ServerConfig(cache=CacheConfig(refused=True))) as served:
            await served.complete(PROMPT)
            for answer in (await served.http.get("/v1/cache/stats"), await served.http.post("/v1/cache/reset")):
                assert answer.status_code == 200
                stats = answer.json()
                assert not stats.pop("enabled")
                settings = {
                    "block_size": 16,
                    "hash": "sha256",
                    "kv_cache_mode_effective": "tokens",
                    "kv_block_bytes": 1000,
                }
                assert {name: stats.pop(name) for name in settings} == settings
                assert not any(stats.values())

    run(work())


def test_both_answer_in_every_state_of_the_server() -> None:
    async def work() -> None:
        def load() -> Backend:
            raise OSError("no model")

        engine = Engine(ServerConfig().engine, load)
        async with client(create_app(engine, ServerConfig())) as http:
            engine.start()
            with pytest.raises(OSError, match="no model"):
                await engine.wait_ready()
            for answer in (await http.get("/v1/cache/stats"), await http.post("/v1/cache/reset")):
                assert answer.status_code == 200
                assert answer.json()["entries"] == 0
        await engine.close()

    run(work())


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/cache/stats"), ("GET", "/v1/cache/reset")])
def test_other_methods_are_405(method: str, path: str) -> None:
    async def work() -> Any:
        async with serving() as served:
            return await served.http.request(method, path)

    assert run(work()).status_code == 405


def test_a_key_is_needed() -> None:
    async def work() -> Any:
        async with serving(says("x"), network(api_keys=("k",))) as served:
            return await served.http.get("/v1/cache/stats")

    assert run(work()).status_code == 401
