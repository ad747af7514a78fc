"""Prompts wait for a thread; those that nobody waits for are not made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import Request

from mlxcel.api.connection import ClientGone
from mlxcel.api.prompt_thread import on_prompt_thread
from mlxcel.api.state import PROMPT_THREADS, AppState
from mlxcel.config import EngineConfig, ServerConfig
from mlxcel.engine.engine import Engine
from mlxcel.engine.errors import Busy, Closing
from tests.engine.scripted import ScriptedBackend

from .stub import run, until


class Asked:
    """A request whose body was read, and whose client may leave."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self.request = Request({"type": "http", "headers": []}, self._messages.get)

    def leave(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})


def made_while_all_threads_work(between: Callable[[AppState, Asked], Any]) -> tuple[list[Any], int]:
    """What comes of two prompts that find no thread free, when `between` is done to the first one's request before
    there is one; and how many of the two were made."""
    made = 0

    async def work() -> tuple[list[Any], int]:
        engine = Engine(ServerConfig().engine, ScriptedBackend)
        engine.start()
        await engine.wait_ready()
        state = AppState(engine, ServerConfig())
        gate = threading.Event()

        def make() -> int:
            nonlocal made
            made += 1
            return made

        first, second = Asked(), Asked()
        busy = [asyncio.create_task(on_prompt_thread(state, Asked().request, gate.wait)) for _ in range(PROMPT_THREADS)]
        await until(lambda: state.prompt_threads.available_tokens == 0)
        waiting = [asyncio.create_task(on_prompt_thread(state, asked.request, make)) for asked in (first, second)]
        await until(lambda: state.prompt_threads.statistics().tasks_waiting == len(waiting))
        closing = between(state, first)
        gate.set()
        assert await asyncio.gather(*busy) == [True] * PROMPT_THREADS
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        await (closing or engine.close())
        return outcomes, made

    return run(work())


def test_a_client_that_has_left_is_passed_over() -> None:
    (first, second), made = made_while_all_threads_work(lambda _, asked: asked.leave())
    assert isinstance(first, ClientGone)
    assert (second, made) == (1, 1)


def test_nothing_is_made_once_the_server_stops() -> None:
    def stop(state: AppState, _: Asked) -> Any:
        closing = asyncio.ensure_future(state.engine.close())
        state.engine._closing = True  # pyright: ignore[reportPrivateUsage]  # it has not begun to run
        return closing

    outcomes, made = made_while_all_threads_work(stop)
    assert [type(outcome) for outcome in outcomes] == [Closing, Closing]
    assert made == 0


def test_what_goes_wrong_is_told() -> None:
    async def work() -> None:
        state = AppState(Engine(ServerConfig().engine, ScriptedBackend), ServerConfig())
        with pytest.raises(KeyError):
            await on_prompt_thread(state, Asked().request, lambda: {}["missing"])
        assert state.prompt_threads.available_tokens == PROMPT_THREADS

    run(work())


def test_no_more_prompts_wait_than_the_engine_has_room_for() -> None:
    async def work() -> None:
        config = ServerConfig(engine=EngineConfig(parallel=2, max_queue_depth=1))
        state = AppState(Engine(config.engine, ScriptedBackend), config)
        gate = threading.Event()

        def ask() -> asyncio.Task[bool]:
            return asyncio.create_task(on_prompt_thread(state, Asked().request, gate.wait))

        asking = [ask() for _ in range(PROMPT_THREADS + 3)]
        await until(lambda: state.prompt_threads.statistics().tasks_waiting == 3)
        with pytest.raises(Busy):
            await ask()
        gate.set()
        assert await asyncio.gather(*asking) == [True] * (PROMPT_THREADS + 3)
        assert await ask()

    run(work())
