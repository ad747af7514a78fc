"""What fails, hangs or runs out of memory harms nobody else, and the engine never claims to be well when it is not."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mlxcel.config import EngineConfig
from mlxcel.engine import engine as engine_module
from mlxcel.engine import generation as generation_module
from mlxcel.engine import worker as worker_module
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.engine import EngineState
from mlxcel.engine.errors import Dead, Stuck
from mlxcel.engine.events import Finished, FinishReason
from mlxcel.engine.generation import Generation

from .scripted import ScriptedBackend
from .test_cache_and_memory import Running, expected
from .test_cache_and_memory import request as following
from .test_engine import collect, request, run, running, until

SHORT = 0.3
"""A limit on steps that hang until the test lets them go on."""


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


async def ends(generation: Generation) -> list[Finished]:
    return [event async for event in generation if isinstance(event, Finished)]


def hang_in_decode(backend: ScriptedBackend) -> threading.Event:
    backend.gate.clear()
    return backend.gate


def hang_in_prefill(backend: ScriptedBackend) -> threading.Event:
    go_on = threading.Event()

    def wait(tokens: Sequence[int]) -> None:
        go_on.wait()

    backend.fail_prefill = wait
    return go_on


@pytest.mark.parametrize("hang", [hang_in_decode, hang_in_prefill])
def test_a_step_that_hangs_ends_its_requests_and_shows(hang: Callable[[ScriptedBackend], threading.Event]) -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        go_on = hang(backend)
        async with running(backend, EngineConfig(parallel=1, decode_timeout=SHORT)) as engine:
            stuck, waiting = engine.submit([request("stuck"), request("waiting")])
            for generation in (stuck, waiting):
                (end,) = await ends(generation)
                assert (end.reason, end.message) == (FinishReason.ERROR, "no progress for 0.3 s")
            assert engine.state is EngineState.STUCK
            with pytest.raises(Stuck):
                engine.submit([request("late")])
            assert await engine.reset_cache() == engine.cache_stats(), "nobody waits for a worker that hangs"
            go_on.set()
            await until(lambda: engine.state is EngineState.READY)
            (again,) = engine.submit([request("again")])
            assert (await collect(again))[0] == "again"
            assert [event async for event in stuck] == [], "it ended once"
            await until(lambda: engine.snapshot().active_sequences + engine.snapshot().queue_depth == 0)
            assert backend.rows == []

    run(test)


def test_who_comes_while_a_step_hangs_waits_as_long_as_the_others() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.gate.clear()
        async with running(backend, EngineConfig(parallel=1, decode_timeout=SHORT)) as engine:
            (first,) = engine.submit([request("first")])
            await until(lambda: engine.snapshot().current_batch_size == 1)
            (second,) = engine.submit([request("second")])
            assert [len(await ends(generation)) for generation in (first, second)] == [1, 1]

    run(test)


class Clock:
    """What the engine has instead of `time`: it passes when it is told to."""

    perf_counter = staticmethod(time.perf_counter)

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (engine_module, worker_module, generation_module):
            patch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now


def test_slow_prompts_and_those_behind_them_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading takes longer than the limit, and so does waiting for it; each step of it does not."""
    clock = Clock(monkeypatch)

    async def test() -> None:
        backend, loop = ScriptedBackend(), asyncio.get_running_loop()
        config = EngineConfig(parallel=1, prefill_chunk_size=2, decode_timeout=1.5)
        async with running(backend, config) as engine:

            async def look() -> None:
                engine._watch()
                assert engine.state is EngineState.READY

            def read(tokens: Sequence[int]) -> None:
                clock.now += 1.0
                asyncio.run_coroutine_threadsafe(look(), loop).result(10)

            backend.fail_prefill = read
            generations = engine.submit([request("a" * 20), request("b")])
            assert [(await collect(generation))[0] for generation in generations] == ["a" * 20, "b"]
            assert clock.now == 10.0

    run(test)


def test_an_idle_engine_is_well_however_long_it_idles(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def test() -> None:
        async with running(ScriptedBackend()) as engine:
            clock.now += 1e9
            engine._watch()
            assert engine.state is EngineState.READY

    run(test)


def test_without_a_limit_there_is_a_guard() -> None:
    assert EngineConfig(decode_timeout=0).stuck_after == 300
    assert EngineConfig().stuck_after == 600


def test_closing_does_not_wait_for_a_step_that_hangs() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.gate.clear()
        async with running(backend, EngineConfig(decode_timeout=SHORT)) as engine:
            engine.submit([request("stuck")])
            await until(lambda: engine.state is EngineState.STUCK)
            await engine.close(drain=1000, patience=1000)

    run(test)


def test_closing_tells_who_is_in_a_step_that_goes_on() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.gate.clear()
        async with running(backend) as engine:
            (generation,) = engine.submit([request("stuck")])
            await engine.close(patience=0.01)
            (end,) = await ends(generation)
            assert end.message == "The server is shutting down."

    run(test)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("no blocks")])
@pytest.mark.parametrize("reuse", [Reuse.BEGINNING, Reuse.WHOLE])
def test_a_state_that_cannot_be_kept_costs_nobody_an_answer(error: Exception, reuse: Reuse) -> None:
    async def test() -> None:
        async with Running(reuse=reuse) as s:
            s.kv.save = raising(error)  # type: ignore[method-assign]
            for _ in range(5):
                assert await s.ask("hello " * 10, history=40) == (expected(b"hello " * 10, 10), 0)
            await s.idle()
            assert s.kv.memory.used == 0
            assert s.engine.cache_stats().entries == 0

    run(test)


def test_a_state_that_cannot_be_taken_over_ends_one_sequence_only() -> None:
    async def test() -> None:
        async with Running() as s:
            await s.ask("hello " * 10)
            s.kv.adopt = raising(RuntimeError("bad state"))  # type: ignore[method-assign]
            bad, good = s.engine.submit([following("hello " * 10), following("something else")])
            assert (await collect(bad))[1].message == "inference backend error: bad state"
            assert await s.answer(good) == (expected(b"something else", 10), 0)
            await s.idle()
            assert s.engine.snapshot().sequences_started == 2

    run(test)


def test_without_memory_for_a_known_beginning_it_is_forgotten_and_read() -> None:
    async def test() -> None:
        async with Running() as s:
            await s.ask("hello " * 10)
            s.kv.adopt = raising(MemoryError())  # type: ignore[method-assign]
            assert await s.ask("hello " * 10) == (expected(b"hello " * 10, 10), 0)

    run(test)


def test_a_prompt_that_memory_lacks_for_once_is_read_later() -> None:
    async def test() -> None:
        async with Running() as s:
            await s.ask("hello " * 10)
            lacks = [MemoryError()]
            s.backend.fail_prefill = lambda tokens: lacks.pop() if lacks else None
            assert (await s.ask("another prompt"))[0] == expected(b"another prompt", 10)
            assert not lacks
            assert s.engine.cache_stats().evictions_lru == 1

    run(test)


def test_a_model_that_reads_nothing_any_more_is_given_up() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.fail_prefill = lambda tokens: RuntimeError("device lost")
        async with running(backend) as engine:
            generations = engine.submit([request(str(i) * 5) for i in range(6)])
            assert [len(await ends(generation)) for generation in generations] == [1] * 6
            await until(lambda: engine.state is EngineState.DEAD)
            with pytest.raises(Dead, match="device lost"):
                engine.submit([request("late")])

    run(test)


def test_prompts_that_fail_do_not_take_a_model_down_that_reads_others() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.fail_prefill = lambda tokens: RuntimeError("bad prompt") if tokens[0] == ord("x") else None
        async with running(backend) as engine:
            bad = engine.submit([request("xbad") for _ in range(10)])
            assert [(await collect(g))[1].reason for g in bad] == [FinishReason.ERROR] * 10
            (good,) = engine.submit([request("good")])
            assert (await collect(good))[0] == "good"
            assert backend.pending == {}

    run(test)


@pytest.mark.parametrize("where", ["leave", "reset"])
def test_a_worker_that_ends_tells_everyone_and_the_log(where: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        setattr(backend, where, raising(RuntimeError("lost count")))
        if where == "reset":
            backend.fail_decode = lambda rows: RuntimeError("bad step")
        async with running(backend, EngineConfig(parallel=1)) as engine:
            generations = engine.submit([request(str(i)) for i in range(4)])
            assert [len(await ends(generation)) for generation in generations] == [1] * 4
            assert engine.state is EngineState.DEAD
            with pytest.raises(Dead, match="lost count"):
                engine.submit([request("late")])

    with caplog.at_level(logging.CRITICAL):
        run(test)
    (record,) = caplog.records
    assert "worker has ended" in record.getMessage()
    assert record.exc_info is not None
    assert "lost count" in str(record.exc_info[1])


def test_events_after_the_last_one_are_dropped() -> None:
    async def test() -> None:
        backend = ScriptedBackend(lambda prompt: [120] * 3000)
        async with running(backend) as engine:
            (generation,) = engine.submit([request("a")])
            async for _ in generation:
                break
            await engine.close()
            events = [event async for event in generation]
            assert sum(isinstance(event, Finished) for event in events) == 1
            assert isinstance(events[-1], Finished)

    run(test)
