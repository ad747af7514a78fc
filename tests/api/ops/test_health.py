"""GET /health."""

from __future__ import annotations

from typing import Any

from mlxcel.config import EngineConfig, ServerConfig

from ..stub import AsgiCall, run, says, serving, until, with_info


def test_the_whole_shape_at_rest() -> None:
    async def work() -> None:
        async with serving(says("abc")) as served:
            await served.complete("hello")
            await served.idle()
            expected = {
                "status": "ok",
                "model": "scripted",
                "batch": {"active_sequences": 0, "queue_depth": 0, "max_batch_size": 4},
                "observability": {
                    "sequences_started": 1,
                    "sequences_completed": 1,
                    "total_prefill_tokens": 6,
                    "total_decode_tokens": 3,
                    "decode_steps_processed": 4,
                    "prefill_chunks_processed": 1,
                    "current_batch_size": 0,
                    "cache_pool_active": 0,
                },
                "context_size": 0,
                "tool_call_parser": None,
            }
            for path in ("/health", "/", "/v1/health"):
                response = await served.http.get(path)
                assert response.status_code == 200
                assert response.json() == expected

    run(work())


def test_all_slots_busy() -> None:
    async def work() -> None:
        async with serving(config=ServerConfig(engine=EngineConfig(parallel=1))) as served:
            served.backend.gate.clear()
            calls = [AsgiCall(served.app, "/v1/completions", {"prompt": "hi"}) for _ in range(2)]
            await until(lambda: served.snapshot.active_sequences == 1 and served.snapshot.queue_depth == 1)
            busy = await served.http.get("/health")
            assert busy.status_code == 503
            assert busy.json()["status"] == "no slot available"
            assert busy.json()["batch"] == {"active_sequences": 1, "queue_depth": 1, "max_batch_size": 1}
            served.backend.gate.set()
            for call in calls:
                await call.task
            await served.idle()
            assert (await served.http.get("/health")).status_code == 200

    run(work())


def health(template: str, engine: EngineConfig) -> Any:
    async def work() -> Any:
        backend = with_info(says("a"), chat_template=template)
        async with serving(backend, ServerConfig(engine=engine)) as served:
            return (await served.http.get("/health")).json()

    return run(work())


def test_context_and_tools() -> None:
    plain = health("{{ messages }}", EngineConfig(ctx_size=2048, parallel=2))
    assert (plain["context_size"], plain["tool_call_parser"]) == (1024, None)
    tools = health("{{ tools }}{{ messages }}", EngineConfig(ctx_size=0, parallel=2))
    assert (tools["context_size"], tools["tool_call_parser"]) == (0, "mlxcel")


def test_a_broken_template_does_not_break_health() -> None:
    assert health("{% for", EngineConfig())["status"] == "ok"
