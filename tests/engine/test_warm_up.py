"""Reading ahead: only while nothing else is to be done, and only what a state is there for."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from mlxcel.config import CacheConfig
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.warm_up import PIECE

from .test_cache_and_memory import CACHE, Running, expected, request
from .test_engine import collect, run, until

FIRST = "u: hello\n" * 4
NEXT = FIRST + "a: " + "word " * 150 + "\nu: "
"""With which the next prompt begins: three pieces after the first history."""


def running(cache: CacheConfig = CACHE, budget: int | None = None) -> Running:
    return Running(cache=cache, budget=budget, reuse=Reuse.WHOLE)


def ahead(s: Running, text: str = NEXT, **fields: object) -> None:
    s.engine.warm_up(request(text + "x", history=len(text), **fields))


async def settle(s: Running, entries: int) -> None:
    await until(lambda: s.engine.cache_stats().snapshot_entries == entries)


def test_the_next_prompt_begins_with_what_was_read_ahead() -> None:
    async def test() -> None:
        async with running() as s:
            await s.ask(FIRST + "a:", history=len(FIRST))
            before, inserts = s.engine.snapshot(), s.engine.cache_stats().snapshot_inserts
            pieces = len(s.backend.prefilled)
            ahead(s)
            await until(lambda: s.engine.cache_stats().snapshot_inserts > inserts)
            after = s.engine.snapshot()
            assert dataclasses.asdict(after) == dataclasses.asdict(before), "no request was served"
            assert s.backend.prefilled[pieces:] == [PIECE, PIECE, len(NEXT) - len(FIRST) - 2 * PIECE]
            assert not s.kv.sequences
            prompt = NEXT + "more\na:"
            text, cached = await s.ask(prompt, history=len(prompt) - 2)
            assert (text, cached) == (expected(prompt.encode(), 10), len(NEXT))

    run(test)


def test_the_answer_may_still_be_asked_for_again() -> None:
    async def test() -> None:
        async with running() as s:
            await s.ask(FIRST + "a:", history=len(FIRST))
            ahead(s)
            await until(lambda: not s.engine._worker._warm_up.pending and len(s.backend.prefilled) > 6)
            assert (await s.ask(FIRST + "a:", history=len(FIRST)))[1] == len(FIRST)

    run(test)


@pytest.mark.parametrize(
    ("cache", "fields"),
    [
        (dataclasses.replace(CACHE, warm_up=False), {}),
        (dataclasses.replace(CACHE, boundaries=False), {}),
        (dataclasses.replace(CACHE, cache_prompt=False), {}),
        (CACHE, {"cache_prompt": False}),
        (CACHE, {"tenant": "other"}),
        (CACHE, {"conversation": "other"}),
    ],
)
def test_nothing_is_read_without_a_state_to_extend(cache: CacheConfig, fields: dict[str, object]) -> None:
    async def test() -> None:
        async with running(cache) as s:
            await s.ask(FIRST + "a:", history=len(FIRST))
            read = list(s.backend.prefilled)
            ahead(s, **fields)
            await s.ask("z", 1)
            assert s.backend.prefilled == read

    run(test)


def test_what_does_not_fit_is_not_read() -> None:
    async def test() -> None:
        async with running(budget=12) as s:
            await s.ask(FIRST + "a:", 2, history=len(FIRST))
            kept = s.kv.memory.used
            ahead(s)
            assert (await s.ask("z", 1))[0] == expected(b"z", 1)
            await s.idle()
            assert s.kv.memory.used == kept
            assert not s.kv.sequences
            ahead(s, "u" * 5000)  # more than the context
            assert (await s.ask("z", 1))[0] == expected(b"z", 1)

    run(test)


def test_who_comes_meanwhile_waits_for_a_piece_and_has_what_was_read() -> None:
    """The next turn itself comes while it is being read ahead."""

    async def test() -> None:
        async with running() as s:
            await s.ask(FIRST + "a:", history=len(FIRST))
            prompt, come = NEXT + "more\na:", []

            def arrive(tokens: object) -> None:
                if not come:
                    s.engine._worker.submit(s.engine._sequence(request(prompt, 10), s.engine.info, 4096))
                    come.append(tokens)

            s.backend.fail_prefill = arrive  # type: ignore[assignment]
            with s.engine._in_flight_lock:
                s.engine._in_flight += 1
            pieces = len(s.backend.prefilled)
            ahead(s)
            await s.idle()
            assert sum(s.backend.prefilled[pieces:]) == len(prompt) - 1 - len(FIRST), "nothing was read twice"
            assert s.backend.prefilled[pieces] == PIECE
            assert not s.kv.sequences

    run(test)


def test_a_model_that_fails_then_goes_on_without() -> None:
    async def test() -> None:
        async with running() as s:
            await s.ask(FIRST + "a:", history=len(FIRST))
            s.backend.fail_prefill = lambda tokens: RuntimeError("bad piece")
            ahead(s)
            await until(lambda: not s.kv.sequences and not s.engine._worker._warm_up.pending)
            s.backend.fail_prefill = lambda tokens: None
            (generation,) = s.engine.submit([request("again", 5)])
            assert (await collect(generation))[0] == expected(b"again", 5)

    run(test)


def test_who_comes_meanwhile_is_served_though_what_was_read_cannot_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("bad copy")

    async def test() -> None:
        async with running() as s:
            await s.ask(FIRST + "a:", history=len(FIRST))
            reading = threading.Event()

            def hold(tokens: object) -> None:
                if not reading.is_set():
                    reading.set()
                    s.backend.gate.wait(10)

            s.backend.gate.clear()
            s.backend.fail_prefill = hold  # type: ignore[assignment]
            ahead(s)
            await until(reading.is_set)
            monkeypatch.setattr(s.kv, "save", broken)
            (generation,) = s.engine.submit([request("z", 5)])
            s.backend.gate.set()
            assert (await s.answer(generation))[0] == expected(b"z", 5)
            assert not s.kv.sequences

    run(test)
