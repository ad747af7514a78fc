"""Sequences that outgrow what is kept of them, on real models with random weights."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.config import EngineConfig
from mlxcel.engine.backend import Backend
from mlxcel.engine.cache.retention import SINK, Retention
from mlxcel.engine.cache.sizing import NEW_SEQUENCE
from mlxcel.engine.engine import Engine
from mlxcel.models import mlxlm
from tests.engine.test_native_backend import backend as native_backend
from tests.engine.test_native_backend import make_model
from tests.engine.test_reuse import CACHE, Ask, is_exact, prompt, served
from tests.engine.test_runner import backend as mlx_backend

mlxlm.prepare()
from mlx_lm.models.cache import KVCache  # noqa: E402

RETENTION = Retention.within(300)
KINDS = [
    ("decoder", "llama"),
    ("paged", "llama"),
    ("paged", "gemma3_text"),
    ("paged", "qwen3_next"),
    ("stock", "llama"),
    ("stock", "gemma3_text"),
    ("int8", "llama"),
    ("stock", "qwen3_next"),
]
"""In blocks, in mlx-lm's caches, packed, and beside windows and recurrent layers."""


def make(kind: str, family: str, retention: Retention | None = RETENTION) -> Backend:
    if kind == "decoder":
        return native_backend(family, "4 bits in 32", retention=retention)
    return mlx_backend(family, kind, blocks=64, retention=retention)


def forgotten(place: int) -> int:
    """Tokens that the token at this place does not see any more."""
    beyond = place - RETENTION.most
    return 0 if beyond < 0 else (beyond // RETENTION.step + 1) * RETENTION.step


class Masked(KVCache):
    """Has all keys, and shows each token those that it may see."""

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
        places = np.arange(N)
        hidden = np.array([forgotten(place) for place in places])[:, None]
        return mx.array((places <= places[:, None]) & ((places < SINK) | (places >= SINK + hidden)))


def expected(kind: str, family: str, tokens: list[int]) -> np.ndarray:
    """Logits [tokens, vocabulary], all tokens at once, on stock MLX."""
    model: Any
    if kind == "decoder":
        model = make_model(family, "4 bits in 32")
        model.set_dtype(mx.float32)
    else:
        model = mlx_backend(family, "stock")._model
    return np.array(model(mx.array([tokens]), cache=[Masked() for _ in model.layers])[0])


def read(backend: Backend, key: int, tokens: list[int], chunk: int) -> None:
    """All but the last token, as the scheduler would have it read."""
    start, end = 0, len(tokens) - 1
    while start < end:
        stop = min(start + chunk, RETENTION.piece_end(start), end)
        backend.prefill(key, tokens[start:stop])
        start = stop
    backend.join(key)


@pytest.mark.parametrize(("kind", "family"), [case for case in KINDS if case[1] == "llama"])
@pytest.mark.parametrize("chunk", [50, 1000])
def test_each_token_sees_the_first_and_the_latest_ones(kind: str, family: str, chunk: int) -> None:
    """Rows that forget at different steps, some while their prompts are read and some while they decode."""
    backend = make(kind, family)
    texts = [prompt(430, seed) for seed in range(3)]
    wanted = [expected(kind, family, text) for text in texts]
    at = [380, 250, 20]
    for key, length in enumerate(at):
        read(backend, key, texts[key][:length], chunk)
    for step in range(50):
        logits = backend.decode([text[length + step - 1] for text, length in zip(texts, at, strict=True)])
        for row, length, want in zip(logits, at, wanted, strict=True):
            error = np.linalg.norm(row - want[length + step - 1]) / np.linalg.norm(want[length + step - 1])
            assert error < 0.02, (length, step)
    assert forgotten(429) > forgotten(379) > forgotten(299) > 0 == forgotten(69)


@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_below_its_limit_a_sequence_is_as_without(kind: str, family: str) -> None:
    answers = []
    for backend in (make(kind, family), make(kind, family, None)):

        async def test(ask: Ask, engine: Engine) -> None:
            answers.append((await ask(prompt(225, 1), 31))[0])

        served(backend, test, exact=is_exact(kind, family))
    assert len(answers[0].tokens) == 31
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_beyond_it_goes_on_and_leaves_nothing_behind(kind: str, family: str) -> None:
    backend = make(kind, family)
    start = prompt(220, 1)
    long = start + prompt(250, 2)

    async def test(ask: Ask, engine: Engine) -> None:
        cold, _ = await ask(start, 45)
        assert len(cold.tokens) == 45
        far, _ = await ask(long, 6)
        stats = engine.cache_stats()
        assert stats.entries + stats.snapshot_entries == 0, "its beginning is gone"
        assert backend.kv.memory.used == 0
        # A hit, pieces that end elsewhere, and company change nothing.
        await ask(start, 4, history=210)
        kept = backend.kv.memory.used
        assert kept > 0
        (again, cached), (hit, _) = await asyncio.gather(ask(start, 45, history=210), ask(long, 6))
        assert (again, hit) == (cold, far)
        assert cached > 0
        assert backend.kv.memory.used == kept
        await engine.reset_cache()
        assert backend.kv.memory.used == 0

    served(backend, test, exact=is_exact(kind, family))


@pytest.mark.parametrize(("kind", "family"), KINDS)
def test_a_long_sequence_takes_no_more_than_is_kept_of_it(kind: str, family: str) -> None:
    backend = make(kind, family)
    most = backend.kv.growth(NEW_SEQUENCE, RETENTION.most)
    assert backend.kv.growth(NEW_SEQUENCE, 100_000) == most
    assert backend.info.kv_limit is None
    read(backend, 1, prompt(450, 1), 100)
    assert backend.kv.length(1) == 0, "not all of it is there"
    for _ in range(70):
        before, growth = backend.kv.memory.used, backend.kv.growth(1, 1)
        backend.decode([3])
        assert backend.kv.memory.used <= min(most, before + growth)
    assert backend.kv.growth(1, 100_000) <= most
    backend.leave([])
    assert backend.kv.memory.used == 0


def test_what_has_forgotten_can_be_read_again() -> None:
    """Rows lose their places for want of memory, and the context shifts: what is said depends on the text alone."""
    small, large = (native_backend("llama", "4 bits in 32", blocks=n, retention=RETENTION) for n in (7, 64))
    texts = [prompt(330, seed) for seed in range(3)]
    config = EngineConfig(ctx_size=3 * 512, parallel=3, context_shift=True, prefill_chunk_size=16)
    answers: list[list[Any]] = []

    async def test(ask: Ask, engine: Engine) -> None:
        answers.append([text for text, _ in await asyncio.gather(*(ask(text, 200) for text in texts))])

    for backend in (small, large):
        served(backend, test, dataclasses.replace(CACHE, cache_prompt=False), exact=True, config=config)
    assert answers[0] == answers[1]
    assert {len(said.tokens) for said in answers[0]} == {200}
    assert small.info.kv_limit is None
