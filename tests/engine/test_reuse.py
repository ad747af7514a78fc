"""Cached prompts on real models with random weights: a hit says what a cold run says, for every class of cache."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.config import CacheConfig, EngineConfig
from mlxcel.engine.backend import Backend
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.engine import Engine
from mlxcel.engine.request import GenerationRequest
from tests.engine.said import GREEDY, Said, said
from tests.engine.test_engine import until
from tests.engine.test_native_backend import backend as native_backend
from tests.engine.test_runner import TO_THE_BIT
from tests.engine.test_runner import backend as mlx_backend

CACHE = CacheConfig(min_prefix=4, apc_block_size=4)
SMALL_PIECES = EngineConfig(prefill_chunk_size=16)
WINDOW = 8
"""Of the small Gemma 3."""

CUT = [
    ("decoder", "llama"),
    ("decoder", "qwen3"),
    ("paged", "llama"),
    ("paged", "qwen3_moe"),
    ("paged", "gemma3_text"),
    ("native", "llama"),
    ("stock", "llama"),
    ("stock", "qwen3_moe"),
    ("int8", "llama"),
    ("4 bits", "qwen3"),
]
"""Plain attention: in blocks, in blocks with windows, in mlx-lm's caches, and packed."""
WHOLE = [
    ("paged", "qwen3_next"),
    ("native", "qwen3_next"),
    ("stock", "qwen3_next"),
    ("stock", "gemma3_text"),
    ("int8", "qwen3_next"),
    ("stock", "gpt_oss"),
    ("stock", "mamba2"),
    ("native", "lfm2"),
]
"""Recurrent layers, rotating windows, and both beside plain attention."""


def make(kind: str, family: str) -> Backend:
    if kind == "decoder":
        return native_backend(family, "4 bits in 32")
    return mlx_backend(family, kind, blocks=64)


def prompt(length: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(length)]


def is_exact(kind: str, family: str) -> bool:
    """Whether a row's bits depend on nothing but its tokens."""
    return kind == "decoder" or (kind == "paged" and family in TO_THE_BIT)


Ask = Callable[..., Awaitable[tuple[Said, int]]]


def served(
    backend: Backend,
    test: Callable[[Ask, Engine], Awaitable[None]],
    cache: CacheConfig = CACHE,
    exact: bool = False,
    config: EngineConfig = SMALL_PIECES,
) -> None:
    async def run() -> None:
        engine = Engine(config, lambda: backend, cache)
        engine.start()
        await engine.wait_ready()

        async def ask(tokens: list[int], count: int = 12, **fields: object) -> tuple[Said, int]:
            made = GenerationRequest(tuple(tokens), GREEDY, count, logprobs=0, **fields)  # type: ignore[arg-type]
            answer = await said(engine.submit([made])[0], exact=exact)
            return answer, answer.usage.cached_tokens

        try:
            await test(ask, engine)
        finally:
            await engine.close()

    asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.parametrize(("kind", "family"), CUT)
def test_any_common_beginning_is_used(kind: str, family: str) -> None:
    backend = make(kind, family)
    assert backend.kv.reuse is Reuse.BEGINNING
    first = prompt(150, 1)
    others = [first, first + prompt(40, 2), first[:70] + prompt(30, 3), first[:64] + prompt(3, 4), first, first[:40]]

    async def test(ask: Ask, engine: Engine) -> None:
        cold = [(await ask(tokens, cache_prompt=False))[0] for tokens in others]
        await ask(first)
        for tokens, expected in zip(others, cold, strict=True):
            text, cached = await ask(tokens)
            assert text == expected
            assert cached >= min(len(tokens) - 1, 64)
        # All at once: they share blocks while they write.
        together = await asyncio.gather(*(ask(tokens) for tokens in others))
        assert [text for text, _ in together] == cold
        assert all(cached for _, cached in together)
        await engine.reset_cache()
        assert backend.kv.memory.used == 0
        assert await ask(first) == (cold[0], 0)

    served(backend, test, exact=is_exact(kind, family))


@pytest.mark.parametrize(("kind", "family"), CUT)
def test_requests_that_come_together_read_a_prompt_once(kind: str, family: str) -> None:
    tokens = prompt(150, 1)

    async def test(ask: Ask, engine: Engine) -> None:
        cold = await ask(tokens, cache_prompt=False)
        together = await asyncio.gather(*(ask(tokens) for _ in range(3)))
        assert [text for text, _ in together] == [cold[0]] * 3
        assert [cached for _, cached in together] == [0, len(tokens) - 1, len(tokens) - 1]

    served(make(kind, family), test)


@pytest.mark.parametrize(("kind", "family"), WHOLE)
def test_a_whole_state_is_used_by_what_goes_on_from_it(kind: str, family: str) -> None:
    """Two turns of a chat whose second prompt writes the answer of the first one differently, and a regeneration."""
    backend = make(kind, family)
    assert backend.kv.reuse is Reuse.WHOLE
    history = prompt(5 * WINDOW, 1)
    first = history + prompt(3, 2)
    second_history = history + prompt(30, 3)
    second = second_history + prompt(3, 2)

    async def test(ask: Ask, engine: Engine) -> None:
        cold = [(await ask(tokens, cache_prompt=False))[0] for tokens in (first, second)]
        assert await ask(first, history=len(history)) == (cold[0], 0)
        text, cached = await ask(second, history=len(second_history))
        assert (text, cached) == (cold[1], len(history))
        assert await ask(second, history=len(second_history)) == (cold[1], len(second_history))
        # A raw text that goes on from all that was generated.
        stats = engine.cache_stats()
        assert stats.snapshot_entries > 0
        assert stats.reject_model_owned_state == 0
        together = await asyncio.gather(*(ask(tokens) for tokens in (first, second, second)))
        assert [text for text, _ in together] == [cold[0], cold[1], cold[1]]
        await engine.reset_cache()
        assert backend.kv.memory.used == 0

    served(backend, test, exact=is_exact(kind, family))


@pytest.mark.parametrize(("kind", "family"), WHOLE)
def test_what_was_read_ahead_is_gone_on_from(kind: str, family: str) -> None:
    backend = make(kind, family)
    history = prompt(5 * WINDOW, 1)
    following = history + prompt(30, 3)
    ahead = GenerationRequest((*following, 0), history=len(following))

    async def test(ask: Ask, engine: Engine) -> None:
        cold, _ = await ask(following + prompt(3, 2), cache_prompt=False)
        await ask(history + prompt(3, 2), history=len(history))
        inserts = engine.cache_stats().snapshot_inserts
        engine.warm_up(ahead)
        await until(lambda: engine.cache_stats().snapshot_inserts > inserts)
        assert await ask(following + prompt(3, 2)) == (cold, len(following))
        await engine.reset_cache()
        assert backend.kv.memory.used == 0

    served(backend, test, exact=is_exact(kind, family))


@pytest.mark.parametrize(("kind", "family"), [*CUT[:1], *CUT[2:3], *CUT[-1:], *WHOLE])
def test_a_text_goes_on_from_its_own_answer(kind: str, family: str) -> None:
    backend = make(kind, family)
    start = prompt(5 * WINDOW, 5)

    async def test(ask: Ask, engine: Engine) -> None:
        answer, _ = await ask(start)
        assert len(answer.tokens) == 12
        longer = [*start, *answer.tokens, *prompt(5, 6)]
        text, cached = await ask(longer)
        assert cached == len(start) + 11
        assert text == (await ask(longer, cache_prompt=False))[0]

    served(backend, test, exact=is_exact(kind, family))


@pytest.mark.parametrize(("kind", "family"), [("paged", "qwen3_next"), ("stock", "gemma3_text"), ("stock", "llama")])
def test_all_that_is_kept_stays_within_the_capacity(kind: str, family: str) -> None:
    """Fifty different prompts: blocks, arrays and states all count."""
    backend = make(kind, family)
    capacity = 4 * backend.kv.growth(-1, 60)
    cache = CacheConfig(min_prefix=4, capacity_bytes=capacity, snapshot_capacity_bytes=capacity)

    async def test(ask: Ask, engine: Engine) -> None:
        for seed in range(50):
            await ask(prompt(40, seed), 4, history=35)
            stats = engine.cache_stats()
            kept = stats.bytes + stats.snapshot_bytes
            assert 0 < kept <= capacity
            assert backend.kv.memory.used == kept
        assert stats.evictions_lru + stats.snapshot_evictions_lru > 20

    served(backend, test, cache)


@functools.cache
def decoder(blocks: int) -> Backend:
    """One model, with more or less memory."""
    return native_backend("llama", "4 bits in 32", blocks=blocks)


COLD: dict[tuple[int, ...], Said] = {}


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70)), min_size=1, max_size=4),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=25, deadline=None)
def test_prompts_that_share_what_they_may_say_what_they_say_alone(wishes: list[list[tuple[int, int]]]) -> None:
    """At once and one after the other, with memory for two: blocks are shared, copied, given up and read again."""
    small, large = decoder(9), decoder(64)
    pieces = [prompt(70, seed) for seed in (1, 2, 3)]
    prompts = [[token for piece, length in wish for token in pieces[piece][:length]] for wish in wishes]

    async def alone(ask: Ask, engine: Engine) -> None:
        for tokens in prompts:
            if tuple(tokens) not in COLD:
                COLD[tuple(tokens)] = (await ask(tokens, 30, cache_prompt=False))[0]

    async def shared(ask: Ask, engine: Engine) -> None:
        for _ in range(2):
            together = await asyncio.gather(*(ask(tokens, 30) for tokens in prompts))
            assert [text for text, _ in together] == [COLD[tuple(tokens)] for tokens in prompts]
        for tokens in prompts:
            assert (await ask(tokens, 30))[0] == COLD[tuple(tokens)]
        assert small.kv.memory.used == engine.cache_stats().bytes
        await engine.reset_cache()
        assert small.kv.memory.used == 0

    served(large, alone, exact=True)
    served(small, shared, exact=True)
