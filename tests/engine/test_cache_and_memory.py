"""The engine's prompt cache, and what it does when memory is short: scripted tokens, counted blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.config import CacheConfig, EngineConfig
from mlxcel.engine.backend import Backend, KvLimit
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.engine import Engine
from mlxcel.engine.errors import OverBudget
from mlxcel.engine.events import FinishReason
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, Priority, SamplingParams

from .scripted import EOS, ScriptedBackend, ScriptedStorage
from .test_engine import collect, run, until

GREEDY = SamplingParams(temperature=0.0)
BLOCK = ScriptedStorage.BLOCK
CACHE = CacheConfig(min_prefix=4, apc_block_size=4)
OFF = CacheConfig(cache_prompt=False)


def follow(fed: Sequence[int]) -> int:
    """A letter that depends on every token before it."""
    value = 7
    for token in fed:
        value = (value * 31 + token) % 65521
    return 97 + value % 26


def expected(prompt: bytes, count: int, context: int = 10**6, keep: int = 0) -> str:
    tokens, said = list(prompt), ""
    for _ in range(count):
        if len(tokens) >= context:
            kept = len(prompt) if keep < 0 else keep
            del tokens[kept : kept + (len(tokens) - kept) // 2]
        tokens.append(follow(tokens))
        said += chr(tokens[-1])
    return said


def request(text: str | bytes, max_tokens: int | None = 10, **fields: object) -> GenerationRequest:
    data = text.encode() if isinstance(text, str) else text
    return GenerationRequest(tuple(data), GREEDY, max_tokens, **fields)  # type: ignore[arg-type]


class Running:
    """An engine over counted blocks, for `async with`."""

    def __init__(
        self,
        config: EngineConfig | None = None,
        cache: CacheConfig = CACHE,
        budget: int | None = None,
        reuse: Reuse = Reuse.BEGINNING,
        context: int = 4096,
    ) -> None:
        self.kv = ScriptedStorage(reuse, budget)
        self.backend = ScriptedBackend(follow=follow, kv=self.kv, context=context)
        backend: Backend = self.backend
        self.engine = Engine(config or EngineConfig(prefill_chunk_size=16), lambda: backend, cache)

    async def __aenter__(self) -> Running:
        self.engine.start()
        await self.engine.wait_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.backend.gate.set()
        await self.engine.close()

    async def ask(self, *args: object, **fields: object) -> tuple[str, int]:
        """An answer, and how much of its prompt was cached."""
        (generation,) = self.engine.submit([request(*args, **fields)])  # type: ignore[arg-type]
        return await self.answer(generation)

    async def answer(self, generation: Generation) -> tuple[str, int]:
        text, finished = await collect(generation)
        assert finished.reason is FinishReason.LENGTH, finished
        return text, finished.usage.cached_tokens

    async def idle(self) -> None:
        await until(lambda: self.engine.snapshot().active_sequences + self.engine.snapshot().queue_depth == 0)


@pytest.mark.parametrize("reuse", [Reuse.BEGINNING, Reuse.WHOLE])
def test_a_cached_prompt_gets_the_answer_of_a_cold_one(reuse: Reuse) -> None:
    async def test() -> None:
        async with Running(reuse=reuse) as s:
            cold, cached = await s.ask("hello " * 10)
            assert cached == 0
            longer = "hello " * 10 + cold + "?"
            text, cached = await s.ask(longer)
            assert cached == 60 + 9, "the last token that was drawn was not run"
            assert text == expected(longer.encode(), 10)
            assert sum(s.backend.prefilled) == 59 + 1, "only what is new is read"
            assert s.engine.snapshot().total_prefill_tokens == 60 + 2
            text, cached = await s.ask(longer, cache_prompt=False)
            assert (text, cached) == (expected(longer.encode(), 10), 0)

    run(test)


def test_the_history_is_kept_for_the_next_turn() -> None:
    async def test() -> None:
        async with Running(reuse=Reuse.WHOLE) as s:
            await s.ask("u: hello\n" * 4 + "a:", history=36)
            second = "u: hello\n" * 4 + "a; something else\nu: more\n"
            text, cached = await s.ask(second + "a:", history=len(second))
            assert (text, cached) == (expected(f"{second}a:".encode(), 10), 36)
            assert (await s.ask("u: hello\n" * 4 + "a:", conversation="other", history=36))[1] == 0

    run(test)


def test_only_what_ended_well_is_kept() -> None:
    async def test() -> None:
        async with Running() as s:
            (generation,) = s.engine.submit([request("abcdefgh" * 4, None)])
            async for _ in generation:
                break
            generation.cancel()
            await s.idle()
            s.backend.fail_decode = lambda rows: RuntimeError("bad step")
            (failed,) = s.engine.submit([request("abcdefgh" * 4)])
            assert (await collect(failed))[1].reason is FinishReason.ERROR
            s.backend.fail_decode = lambda rows: None
            assert (await s.ask("abcdefgh" * 4))[1] == 0
            assert (await s.ask("abcdefgh" * 4))[1] == 31, "it outlives a failed step of others"

    run(test)


def test_a_failed_step_leaves_the_cache_as_it_was() -> None:
    async def test() -> None:
        async with Running() as s:
            await s.ask("abcdefgh" * 4)
            s.backend.fail_decode = lambda rows: RuntimeError("bad step")
            (failed,) = s.engine.submit([request("abcdefgh" * 4)])
            assert (await collect(failed))[1].reason is FinishReason.ERROR
            s.backend.fail_decode = lambda rows: None
            assert await s.ask("abcdefgh" * 4) == (expected(b"abcdefgh" * 4, 10), 31)

    run(test)


def test_reset_empties_the_cache_and_tells_what_was_there() -> None:
    async def test() -> None:
        async with Running() as s:
            await s.ask("abcdefgh" * 4)
            before = s.engine.cache_stats()
            assert (before.entries, before.inserts) == (1, 1)
            assert await s.engine.reset_cache() == before
            assert s.engine.cache_stats().entries == 0
            assert s.kv.memory.used == 0
            assert (await s.engine.reset_cache()).entries == 0
            assert (await s.ask("abcdefgh" * 4))[1] == 0
        assert (await s.engine.reset_cache()).entries == 1, "nobody is there to do it"

    run(test)


def test_an_idle_engine_forgets_in_time() -> None:
    async def test() -> None:
        async with Running(cache=dataclasses.replace(CACHE, ttl=0.05)) as s:
            await s.ask("abcdefgh" * 4)
            await until(lambda: s.engine.cache_stats().evictions_ttl == 1)
            assert s.kv.memory.used == 0

    run(test)


def test_what_is_kept_for_ever_is_no_reason_to_end() -> None:
    """A thread cannot wait for more than some centuries."""

    async def test() -> None:
        async with Running(cache=dataclasses.replace(CACHE, ttl=10**12)) as s:
            await s.ask("hello " * 10)
            await s.idle()
            assert (await s.ask("hello " * 10))[1] == 59

    run(test)


def test_before_and_without_a_cache_the_numbers_are_zero() -> None:
    async def test() -> None:
        engine = Engine(EngineConfig(), lambda: ScriptedBackend(), CACHE)
        stats = engine.cache_stats()
        assert (stats.enabled, stats.entries, stats.lookups, stats.block_size) == (True, 0, 0, 4)
        async with Running(cache=OFF) as s:
            await s.ask("abcdefgh" * 4)
            assert (await s.ask("abcdefgh" * 4))[1] == 0
            stats = s.engine.cache_stats()
            assert (stats.enabled, stats.lookups, stats.inserts) == (False, 0, 0)
            assert s.kv.memory.used == 0

    run(test)


def test_out_of_memory_is_a_wait() -> None:
    """Four long answers in memory for two: whoever came last steps back and goes on later."""

    async def test() -> None:
        async with Running(budget=14, cache=OFF) as s:
            prompts = [bytes([97 + i]) * 20 for i in range(4)]
            s.backend.gate.clear()
            generations = s.engine.submit([request(prompt, 40) for prompt in prompts])
            s.backend.gate.set()
            for prompt, generation in zip(prompts, generations, strict=True):
                assert await s.answer(generation) == (expected(prompt, 40), 0)
            await s.idle()
            assert s.kv.memory.used == 0
            assert s.engine.snapshot().sequences_started == 4

    run(test)


def test_cached_prompts_give_way_to_running_sequences() -> None:
    async def test() -> None:
        async with Running(budget=12) as s:
            for i in range(3):
                await s.ask(bytes([97 + i]) * 20)
            assert s.engine.cache_stats().entries == 3
            text, _ = await s.ask(b"x" * 20, 60)
            assert text == expected(b"x" * 20, 60)
            assert s.engine.cache_stats().evictions_lru > 0

    run(test)


def test_what_never_fits_is_refused_and_what_would_outgrow_memory_ends_there() -> None:
    async def test() -> None:
        s = Running(budget=5)
        s.backend.info = dataclasses.replace(s.backend.info, kv_limit=KvLimit(5 * BLOCK, 5000))
        async with s:
            with pytest.raises(OverBudget, match=r"about 5000 bytes .* has 5000") as refused:
                s.engine.submit([request(b"x" * 40)])
            assert (refused.value.needed, refused.value.budget) == (5000, 5000)
            text, _ = await s.ask(b"x" * 30, None)
            assert text == expected(b"x" * 30, 10)

    run(test)


def test_a_sequence_that_cannot_have_memory_fails_alone() -> None:
    async def test() -> None:
        async with Running(budget=3) as s:
            (generation,) = s.engine.submit([request(b"x" * 40)])
            _, finished = await collect(generation)
            assert finished.reason is FinishReason.ERROR
            assert await s.ask(b"x" * 10) == (expected(b"x" * 10, 10), 0)

    run(test)


@pytest.mark.parametrize("preemption", [True, False])
def test_a_higher_priority_comes_first_and_the_other_goes_on_without_repeats(preemption: bool) -> None:
    async def test() -> None:
        async with Running(EngineConfig(parallel=1, preemption=preemption), cache=OFF) as s:
            s.backend.gate.clear()
            (low,) = s.engine.submit([request("low", 30, priority=Priority.LOW)])
            await until(lambda: s.engine.snapshot().current_batch_size == 1)
            (high,) = s.engine.submit([request("high", 5, priority=Priority.HIGH)])
            s.backend.gate.set()
            assert await s.answer(low) == (expected(b"low", 30), 0)
            assert await s.answer(high) == (expected(b"high", 5), 0)
            # Read: all of both prompts but the last tokens, and what the low one had when it came back.
            assert s.backend.prefilled[:2] == [2, 3]
            assert len(s.backend.prefilled) == 2 + preemption
            snapshot = s.engine.snapshot()
            assert (snapshot.sequences_started, snapshot.sequences_completed) == (2, 2)
            assert snapshot.total_decode_tokens == 35

    run(test)


@pytest.mark.parametrize("keep", [0, 5, -1])
@pytest.mark.parametrize("cache", [CACHE, OFF])
def test_a_full_context_loses_old_tokens_on_request(keep: int, cache: CacheConfig) -> None:
    async def test() -> None:
        config = EngineConfig(ctx_size=1200, parallel=2, context_shift=True, keep=keep)
        async with Running(config, cache) as s:
            prompt = b"once upon a time there was a fox"
            text, _ = await s.ask(prompt, 2000)
            assert text == expected(prompt, 2000, context=600, keep=keep)
            text, _ = await s.ask(prompt, 2000)
            assert text == expected(prompt, 2000, context=600, keep=keep)

    run(test)


def test_without_a_limit_a_shifting_answer_ends_where_the_model_was_made_to() -> None:
    async def test() -> None:
        config = EngineConfig(ctx_size=600, parallel=1, context_shift=True)
        async with Running(config, context=1000) as s:
            text, _ = await s.ask(b"x" * 100, None)
            assert len(text) == 900

    run(test)


def test_a_context_of_nothing_but_what_is_kept_ends_the_answer() -> None:
    async def test() -> None:
        config = EngineConfig(ctx_size=600, parallel=1, context_shift=True, keep=-1)
        async with Running(config) as s:
            text, _ = await s.ask(b"x" * 599, 100)
            assert text == expected(b"x" * 599, 1)

    run(test)


WISHES = st.lists(
    st.tuples(
        st.integers(0, 2),  # one of three beginnings
        st.integers(1, 40),  # how much of it
        st.text(alphabet="xyz", max_size=6),
        st.integers(0, 25),  # tokens wanted
        st.sampled_from(Priority),
        st.sampled_from(["", "a"]),
        st.booleans(),  # cancelled
    ),
    min_size=1,
    max_size=10,
)


@given(
    WISHES,
    st.integers(1, 4),
    st.sampled_from([0, 7]),
    st.sampled_from([None, 12, 20]),
    st.booleans(),
    st.sampled_from([CACHE, OFF, dataclasses.replace(CACHE, apc_enabled=False)]),
    st.sampled_from([Reuse.BEGINNING, Reuse.WHOLE]),
)
@settings(max_examples=60, deadline=None)
def test_everyone_gets_their_own_answer_whatever_is_cached_and_whoever_steps_back(
    wishes: list[tuple[int, int, str, int, Priority, str, bool]],
    slots: int,
    chunk: int,
    budget: int | None,
    preemption: bool,
    cache: CacheConfig,
    reuse: Reuse,
) -> None:
    async def test() -> None:
        config = EngineConfig(parallel=slots, prefill_chunk_size=chunk, preemption=preemption)
        async with Running(config, cache, budget, reuse) as s:
            requests = [
                request(
                    bytes([48 + i]) * length + tail.encode(),
                    count,
                    priority=priority,
                    tenant=tenant,
                    history=length,
                )
                for i, length, tail, count, priority, tenant, _ in wishes
            ]
            generations = s.engine.submit(requests)
            for generation, wish in zip(generations, wishes, strict=True):
                if wish[-1]:
                    generation.cancel()
            for generation, asked, wish in zip(generations, requests, wishes, strict=True):
                if not wish[-1]:
                    assert (await s.answer(generation))[0] == expected(bytes(asked.prompt), wish[3])
            await s.idle()
            assert not s.kv.sequences
            stats = s.engine.cache_stats()
            assert s.kv.memory.used == stats.bytes + stats.snapshot_bytes
            await s.engine.reset_cache()
            assert s.kv.memory.used == 0

    run(test)


def test_an_end_token_ends_a_cached_answer_too() -> None:
    async def test() -> None:
        s = Running()
        s.backend.follow = lambda fed: EOS if len(fed) >= 40 else follow(fed)
        async with s:
            (first,) = s.engine.submit([request("hello " * 5, None)])
            text, finished = await collect(first)
            assert finished.reason is FinishReason.STOP
            (second,) = s.engine.submit([request("hello " * 5, None)])
            assert (await collect(second))[0] == text
            (third,) = s.engine.submit([request("hello " * 5 + text + "!", None)])
            assert (await collect(third))[1].usage.cached_tokens == 40, "all of it was run"

    run(test)
