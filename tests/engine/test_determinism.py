"""On a CPU neither the chunks of a prompt, nor the company of a row, nor what is cached changes what is said."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from mlxcel.config import CacheConfig, EngineConfig
from mlxcel.engine.engine import Engine
from mlxcel.engine.request import GenerationRequest, Priority, SamplingParams

from .said import GREEDY, RANDOM, Said, said
from .test_reuse import is_exact, make, prompt

OFF = CacheConfig(cache_prompt=False)
CACHE = CacheConfig(min_prefix=4, apc_block_size=4)
MODELS = [
    ("decoder", "llama"),
    ("decoder", "qwen3"),
    ("paged", "llama"),
    ("paged", "gemma3_text"),
    ("paged", "qwen3_next"),
    ("stock", "gemma3_text"),
    ("stock", "mamba2"),
]
"""Fused and in graphs; plain attention, sliding windows, recurrent layers and both; in blocks and in states."""


def wish(length: int, seed: int, sampling: SamplingParams = GREEDY, count: int = 20) -> GenerationRequest:
    priority = list(Priority)[seed % 3]
    return GenerationRequest(
        tuple(prompt(length, seed)), sampling, count, logprobs=0, priority=priority, history=length - 2
    )


def say(
    model: tuple[str, str], config: EngineConfig, *groups: list[GenerationRequest], cache: CacheConfig = OFF
) -> list[list[Said]]:
    """The answers to each group, whose requests are asked together; the groups one after the other."""

    async def run() -> list[list[Said]]:
        engine = Engine(config, lambda: make(*model), cache)
        engine.start()
        await engine.wait_ready()
        try:
            exact = is_exact(*model)
            return [[await said(each, exact=exact) for each in engine.submit(group)] for group in groups]
        finally:
            await engine.close()

    return asyncio.run(asyncio.wait_for(run(), 120))


@pytest.mark.parametrize("model", MODELS)
def test_chunks_and_company_change_no_greedy_text(model: tuple[str, str]) -> None:
    wishes = [wish(length, seed) for seed, length in enumerate((70, 1, 33, 129, 5, 64))]
    config = EngineConfig(parallel=1, prefill_chunk_size=0)
    alone = [answer for (answer,) in say(model, config, *([each] for each in wishes))]
    assert all(len(answer.tokens) == 20 for answer in alone)
    for chunk, slots, grant in ((0, 4, 16), (5, 1, 1), (7, 2, 1), (64, 3, 2), (65, 6, 1)):
        config = EngineConfig(parallel=slots, prefill_chunk_size=chunk, prefill_grant_interval=grant)
        assert say(model, config, wishes) == [alone], (chunk, slots)


@pytest.mark.parametrize("model", MODELS)
def test_a_seed_says_the_same_whatever_runs_beside_it_and_is_cached(model: tuple[str, str]) -> None:
    seeded = [wish(40, 7, dataclasses.replace(RANDOM, seed=seed)) for seed in (1, 2)]
    others = [wish(length, seed, RANDOM, count) for seed, length, count in ((8, 90, 5), (9, 3, 40), (10, 20, 11))]
    config = EngineConfig(parallel=4, prefill_chunk_size=16, prefill_grant_interval=1)
    first, second = say(model, config, seeded[:1], seeded[1:])
    assert first != second
    beside = say(
        model,
        config,
        [*others, *seeded],
        [seeded[1], *others, seeded[0]],
        [seeded[0]],
        cache=CACHE,
    )
    assert beside[0][3:] == [*first, *second]
    assert [beside[1][0], beside[1][-1]] == [*second, *first]
    assert beside[2] == first


@pytest.mark.parametrize("model", [MODELS[0], MODELS[4], MODELS[6]])
def test_who_steps_back_goes_on_with_the_same_text(model: tuple[str, str]) -> None:
    """A row gives its place to one of higher priority, and is read again later."""
    low = wish(40, 2, dataclasses.replace(RANDOM, seed=3), count=30)
    high = [wish(20, 3 * seed) for seed in (1, 2, 3)]
    assert low.priority is Priority.LOW
    assert {each.priority for each in high} == {Priority.HIGH}
    config = EngineConfig(parallel=1, preemption=True)

    async def run() -> Said:
        engine = Engine(config, lambda: make(*model), OFF)
        engine.start()
        await engine.wait_ready()
        try:
            (generation,) = engine.submit([low])
            while engine.snapshot().total_decode_tokens == 0:
                await asyncio.sleep(0.001)
            rivals = engine.submit(high)
            answer = await said(generation, exact=is_exact(*model))
            for rival in rivals:
                await said(rival, exact=False)
            return answer
        finally:
            await engine.close()

    ((alone,),) = say(model, config, [low])
    assert asyncio.run(asyncio.wait_for(run(), 120)) == alone
