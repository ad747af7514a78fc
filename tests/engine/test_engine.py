"""The engine with its real worker thread and scheduler, and scripted tokens instead of a model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.config import EngineConfig
from mlxcel.engine.backend import Backend
from mlxcel.engine.engine import Engine, EngineState
from mlxcel.engine.errors import BadConfig, Busy, Closing, ContextOverflow, Dead, Loading
from mlxcel.engine.events import Finished, FinishReason, StopKind, TextPiece
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, SamplingParams
from mlxcel.engine.sampling.sampler import Sampler

from .scripted import EOS, Row, ScriptedBackend

GREEDY = SamplingParams(temperature=0.0)


def request(text: str = "hello", max_tokens: int | None = None, stop: tuple[str, ...] = ()) -> GenerationRequest:
    return GenerationRequest(tuple(text.encode()), GREEDY, max_tokens, stop)


@asynccontextmanager
async def running(backend: Backend, config: EngineConfig | None = None) -> AsyncIterator[Engine]:
    engine = Engine(config or EngineConfig(), lambda: backend)
    engine.start()
    await engine.wait_ready()
    try:
        yield engine
    finally:
        if isinstance(backend, ScriptedBackend):
            backend.gate.set()
        await engine.close()


async def collect(generation: Generation) -> tuple[str, Finished]:
    text, finished = "", None
    async for event in generation:
        if isinstance(event, TextPiece):
            assert finished is None
            text += event.text
        else:
            finished = event
    assert finished is not None
    return text, finished


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("did not come true")


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def test_an_answer_ends_at_the_end_token() -> None:
    async def test() -> None:
        async with running(ScriptedBackend()) as engine:
            (generation,) = engine.submit([request("hello")])
            text, finished = await collect(generation)
        assert text == "hello"
        assert (finished.reason, finished.kind) == (FinishReason.STOP, StopKind.EOS)
        assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (5, 5)

    run(test)


@pytest.mark.parametrize(
    ("max_tokens", "stop", "text", "reason", "kind", "tokens"),
    [
        (3, (), "hel", FinishReason.LENGTH, StopKind.LIMIT, 3),
        (0, (), "", FinishReason.LENGTH, StopKind.LIMIT, 0),
        (None, ("lo",), "hel", FinishReason.STOP, StopKind.WORD, 5),
        (None, ("xyz", "el"), "h", FinishReason.STOP, StopKind.WORD, 3),
        (None, ("lo!",), "hello", FinishReason.STOP, StopKind.EOS, 5),
        (5, ("lo!",), "hello", FinishReason.LENGTH, StopKind.LIMIT, 5),
        (5, ("lo", "lo!"), "hel", FinishReason.STOP, StopKind.WORD, 5),
    ],
)
def test_every_way_to_end(
    max_tokens: int | None, stop: tuple[str, ...], text: str, reason: FinishReason, kind: StopKind, tokens: int
) -> None:
    async def test() -> None:
        async with running(ScriptedBackend()) as engine:
            (generation,) = engine.submit([request("hello", max_tokens, stop)])
            said, finished = await collect(generation)
        assert (said, finished.reason, finished.kind) == (text, reason, kind)
        assert finished.usage.completion_tokens == tokens
        assert (finished.stop_string in stop) == (kind is StopKind.WORD)

    run(test)


def test_generation_ends_at_the_context() -> None:
    async def test() -> None:
        backend = ScriptedBackend(lambda prompt: [120] * 10_000, context=600)
        async with running(backend) as engine:
            long, default = engine.submit([request("a" * 590, max_tokens=10_000), request("a" * 590)])
            for generation in (long, default):
                text, finished = await collect(generation)
                assert (len(text), finished.reason) == (10, FinishReason.LENGTH)

    run(test)


def test_a_prompt_that_fills_the_context_is_refused_before_anything_is_queued() -> None:
    async def test() -> None:
        async with running(ScriptedBackend(context=600)) as engine:
            with pytest.raises(ContextOverflow, match=r"prompt is too long: 600 tokens.* 600"):
                engine.submit([request("fits"), request("a" * 600)])
            assert engine.snapshot().queue_depth == 0

    run(test)


def test_the_context_is_shared_by_the_slots() -> None:
    async def test() -> None:
        async with running(ScriptedBackend(), EngineConfig(ctx_size=4096, parallel=4)) as engine:
            assert engine.slot_context == 1024
        async with running(ScriptedBackend(context=1000), EngineConfig(ctx_size=4096, parallel=2)) as engine:
            assert engine.slot_context == 1000, "never more than the model was made for"

    run(test)


def test_too_little_context_for_a_slot_is_refused_at_once() -> None:
    with pytest.raises(BadConfig, match="leaves 511 for each of 4 slots"):
        Engine(EngineConfig(ctx_size=2047, parallel=4), ScriptedBackend)


def test_a_queue_that_is_full_refuses_all_of_a_group() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.gate.clear()
        async with running(backend, EngineConfig(parallel=2, max_queue_depth=3)) as engine:
            first = engine.submit([request(str(i)) for i in range(4)])
            with pytest.raises(Busy):
                engine.submit([request("a"), request("b")])
            last = engine.submit([request("c")])
            with pytest.raises(Busy):
                engine.submit([request("d")])
            await until(lambda: engine.snapshot().active_sequences == 1)
            assert engine.snapshot().queue_depth == 4
            backend.gate.set()
            assert [(await collect(g))[0] for g in [*first, *last]] == ["0", "1", "2", "3", "c"]
            snapshot = engine.snapshot()
            assert (snapshot.active_sequences, snapshot.queue_depth) == (0, 0)
            assert (snapshot.sequences_started, snapshot.sequences_completed) == (5, 5)
            assert snapshot.total_prefill_tokens == 5
            assert snapshot.total_decode_tokens == 5

    run(test)


def test_sequences_are_decoded_together() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.gate.clear()
        async with running(backend, EngineConfig(parallel=4)) as engine:
            generations = engine.submit([request("ab" * 20 + str(i)) for i in range(4)])
            backend.gate.set()
            assert [(await collect(g))[0][-1] for g in generations] == list("0123")
        assert max(backend.widths) == 4

    run(test)


def test_a_model_that_cannot_batch_gets_one_slot() -> None:
    async def test() -> None:
        backend = ScriptedBackend(can_batch=False)
        async with running(backend, EngineConfig(parallel=4)) as engine:
            assert engine.slots == 1
            generations = engine.submit([request(str(i)) for i in range(3)])
            assert [(await collect(g))[0] for g in generations] == list("012")
        assert max(backend.widths) == 1

    run(test)


def test_a_cancelled_sequence_frees_its_slot_and_says_no_more() -> None:
    async def test() -> None:
        backend = ScriptedBackend(lambda prompt: [120] * 3000)
        async with running(backend, EngineConfig(parallel=1)) as engine:
            running_one, waiting = engine.submit([request("a"), request("b")])
            async for _ in running_one:
                break
            running_one.cancel()
            running_one.cancel()
            waiting.cancel()
            assert [event async for event in running_one] == []
            await until(lambda: engine.snapshot().active_sequences + engine.snapshot().queue_depth == 0)
            assert backend.rows == []
            assert backend.pending == {}
            (after,) = engine.submit([request("c", max_tokens=2)])
            assert (await collect(after))[0] == "xx"

    run(test)


def test_a_prompt_cancelled_between_chunks_leaves_nothing() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        third_chunk, go_on = threading.Event(), threading.Event()

        def wait_in_third_chunk(tokens: object) -> None:
            if backend.pending and len(next(iter(backend.pending.values())).fed) == 20:
                third_chunk.set()
                go_on.wait()

        backend.fail_prefill = wait_in_third_chunk
        async with running(backend, EngineConfig(prefill_chunk_size=10)) as engine:
            (generation,) = engine.submit([request("a" * 100)])
            await until(third_chunk.is_set)
            generation.cancel()
            go_on.set()
            assert [event async for event in generation] == []
            await until(lambda: engine.snapshot().active_sequences + engine.snapshot().queue_depth == 0)
            assert backend.pending == {}
            assert engine.snapshot().prefill_chunks_processed == 3

    run(test)


def test_a_failed_prefill_ends_one_sequence_only() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.fail_prefill = lambda tokens: RuntimeError("no memory") if tokens[0] == ord("x") else None
        async with running(backend) as engine:
            good, bad, other = engine.submit([request("good"), request("xbad"), request("other")])
            assert (await collect(good))[0] == "good"
            text, finished = await collect(bad)
            assert (text, finished.reason) == ("", FinishReason.ERROR)
            assert finished.message == "inference backend error: no memory"
            assert (await collect(other))[0] == "other"
            assert engine.state is EngineState.READY
            assert engine.snapshot().sequences_completed == 2

    run(test)


def test_a_failed_decode_step_ends_its_rows_and_the_engine_lives() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.fail_decode = lambda rows: RuntimeError("bad step")
        async with running(backend) as engine:
            (bad,) = engine.submit([request("bad")])
            assert (await collect(bad))[1].reason is FinishReason.ERROR
            backend.fail_decode = lambda rows: None
            (good,) = engine.submit([request("good")])
            assert (await collect(good))[0] == "good"
            assert engine.snapshot().active_sequences == 0

    run(test)


def test_a_prompt_between_chunks_survives_a_failed_step() -> None:
    async def test() -> None:
        backend = ScriptedBackend()

        def fail_while_prefilling(rows: list[Row]) -> Exception | None:
            return RuntimeError("bad step") if backend.pending else None

        backend.fail_decode = fail_while_prefilling
        backend.gate.clear()  # the long prompt arrives while the short one's first step waits
        async with running(backend, EngineConfig(prefill_chunk_size=10, prefill_grant_interval=1)) as engine:
            short, long = engine.submit([request("s" * 5), request("l" * 50)])
            backend.gate.set()
            assert (await collect(short))[1].reason is FinishReason.ERROR
            assert (await collect(long))[0] == "l" * 50

    run(test)


def test_repeated_failed_steps_end_the_worker_and_everyone_is_told() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.fail_decode = lambda rows: RuntimeError("broken model")
        async with running(backend, EngineConfig(parallel=1)) as engine:
            generations = engine.submit([request(str(i)) for i in range(5)])
            ends = [(await collect(g))[1] for g in generations]
            assert all(end.reason is FinishReason.ERROR for end in ends)
            await until(lambda: engine.state is EngineState.DEAD)
            with pytest.raises(Dead, match="broken model"):
                engine.submit([request("late")])

    run(test)


def test_logits_that_are_not_numbers_end_one_row_only() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        backend.poison = ord("p")
        backend.gate.clear()
        async with running(backend) as engine:
            good, bad = engine.submit([request("good"), request("poison")])
            backend.gate.set()
            assert (await collect(bad))[1].reason is FinishReason.ERROR
            assert (await collect(good))[0] == "good"
            assert engine.state is EngineState.READY

    run(test)


def test_a_row_that_cannot_note_its_token_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    note = Sampler.end

    def note_or_fail(self: Sampler, token: int, share: float | None) -> None:
        if token == ord("!"):
            raise RuntimeError("no room for notes")
        note(self, token, share)

    monkeypatch.setattr(Sampler, "end", note_or_fail)

    async def test() -> None:
        backend = ScriptedBackend()
        backend.gate.clear()
        async with running(backend) as engine:
            good, bad = engine.submit([request("good"), request("ba!d")])
            backend.gate.set()
            text, end = await collect(bad)
            assert (text, end.reason) == ("ba", FinishReason.ERROR)
            assert end.message == "inference backend error: no room for notes"
            assert (await collect(good))[0] == "good"
            assert backend.rows == []

    run(test)


def test_loading_is_visible_and_its_failure_is_told() -> None:
    async def test() -> None:
        release = threading.Event()

        def load() -> Backend:
            release.wait()
            raise RuntimeError("no such model")

        engine = Engine(EngineConfig(), load)
        engine.start()
        assert engine.state is EngineState.LOADING
        with pytest.raises(Loading):
            engine.submit([request()])
        release.set()
        with pytest.raises(RuntimeError, match="no such model"):
            await engine.wait_ready()
        assert engine.state is EngineState.DEAD
        await engine.close()

    run(test)


def test_close_lets_running_sequences_end() -> None:
    async def test() -> None:
        async with running(ScriptedBackend()) as engine:
            generations = engine.submit([request("a" * 200) for _ in range(6)])
            closing = asyncio.create_task(engine.close(drain=20))
            await asyncio.sleep(0)
            with pytest.raises(Closing):
                engine.submit([request("late")])
            assert [len((await collect(g))[0]) for g in generations] == [200] * 6
            await closing

    run(test)


def test_close_ends_what_does_not_end_in_time() -> None:
    async def test() -> None:
        backend = ScriptedBackend(lambda prompt: [120] * 10**6, context=10**6)
        async with running(backend) as engine:
            (generation,) = engine.submit([request("a")])
            await engine.close(drain=0.05)
            _, finished = await collect(generation)
            assert finished.reason is FinishReason.ERROR
            assert finished.message == "The server is shutting down."

    run(test)


def test_close_does_not_count_those_whose_client_has_left(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        backend = ScriptedBackend(lambda prompt: [120] * 10**6, context=10**6)
        async with running(backend) as engine:
            left, stays = engine.submit([request("a"), request("b")])
            left.cancel()
            await engine.close(drain=0.05)
            assert (await collect(stays))[1].reason is FinishReason.ERROR

    run(test)
    assert "1 requests ended with an error" in caplog.text


@given(
    st.lists(
        st.tuples(st.text(alphabet="abc", min_size=1, max_size=30), st.integers(0, 30), st.booleans()),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 4),
    st.integers(0, 8),
    st.integers(0, 3),
)
@settings(max_examples=40, deadline=None)
def test_rows_share_nothing(wishes: list[tuple[str, int, bool]], slots: int, chunk: int, grant: int) -> None:
    """Any mix of prompts, budgets and cancellations: everyone gets their own text, and nothing is left over."""

    async def test() -> None:
        backend = ScriptedBackend(lambda prompt: [*prompt[::-1], EOS])
        config = EngineConfig(parallel=slots, prefill_chunk_size=chunk, prefill_grant_interval=grant)
        async with running(backend, config) as engine:
            generations = engine.submit([request(text, max_tokens=budget) for text, budget, _ in wishes])
            for generation, (_, _, cancel) in zip(generations, wishes, strict=True):
                if cancel:
                    generation.cancel()
            for generation, (text, budget, cancel) in zip(generations, wishes, strict=True):
                if not cancel:
                    assert (await collect(generation))[0] == text[::-1][:budget]
            await until(lambda: engine.snapshot().active_sequences + engine.snapshot().queue_depth == 0)
            assert backend.rows == []
            assert backend.pending == {}

    run(test)
