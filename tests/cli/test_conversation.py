from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mlxcel.chat.errors import PromptError
from mlxcel.chat.prompt import PromptBuilder
from mlxcel.cli.conversation import AnswerError, Conversation
from mlxcel.config import EngineConfig
from mlxcel.engine.engine import Engine
from mlxcel.engine.errors import ContextOverflow
from mlxcel.engine.events import FinishReason
from mlxcel.engine.request import SamplingParams
from tests.engine.scripted import ByteTokenizer, ScriptedBackend

TEMPLATE = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"


@asynccontextmanager
async def opened(
    backend: ScriptedBackend, *, max_tokens: int | None = None, template: str | None = TEMPLATE
) -> AsyncIterator[Conversation]:
    engine = Engine(EngineConfig(parallel=1), lambda: backend)
    engine.start()
    await engine.wait_ready()
    prompts = PromptBuilder(template, {}, ByteTokenizer(), {})
    try:
        yield Conversation(engine, prompts, SamplingParams(temperature=0), max_tokens)
    finally:
        backend.gate.set()
        await engine.close()


def run(body: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(body())


def test_an_answer_is_written_piece_by_piece_and_remembered() -> None:
    async def body() -> None:
        async with opened(ScriptedBackend()) as conversation:
            pieces: list[str] = []
            finished = await conversation.ask("one", pieces.append)
            assert "".join(pieces) == "user=one;"
            assert len(pieces) > 1
            assert finished.reason is FinishReason.STOP
            pieces.clear()
            await conversation.ask("two", pieces.append)
            assert "".join(pieces) == "user=one;assistant=user=one;;user=two;"
            assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2

    run(body)


def test_an_answer_has_a_limit() -> None:
    async def body() -> None:
        async with opened(ScriptedBackend(), max_tokens=3) as conversation:
            pieces: list[str] = []
            finished = await conversation.ask("one", pieces.append)
            assert "".join(pieces) == "use"
            assert finished.reason is FinishReason.LENGTH

    run(body)


def test_what_was_said_before_a_stop_stays() -> None:
    async def body() -> None:
        whole = "a long answer " * 200
        backend = ScriptedBackend(lambda prompt: whole.encode())
        steps = itertools.count()

        def pause(_rows: object) -> None:
            if next(steps) == 40:
                backend.gate.clear()

        backend.fail_decode = pause
        async with opened(backend) as conversation:
            heard = asyncio.Event()

            def write(piece: str) -> None:
                heard.set()

            asking = asyncio.create_task(conversation.ask("hello", write))
            await heard.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            question, answer = conversation.messages
            assert question["content"] == "hello"
            assert answer["content"]
            assert answer["content"] != whole
            assert whole.startswith(answer["content"])

    run(body)


def test_a_failed_question_is_forgotten() -> None:
    async def body() -> None:
        backend = ScriptedBackend(context=600)
        async with opened(backend) as conversation:
            await conversation.ask("hi", lambda piece: None)
            before = conversation.messages
            with pytest.raises(ContextOverflow):
                await conversation.ask("x" * 1000, lambda piece: None)
            backend.fail_prefill = lambda tokens: RuntimeError("no memory")
            with pytest.raises(AnswerError, match=r"."):
                await conversation.ask("again", lambda piece: None)
            assert conversation.messages == before

    run(body)


def test_a_model_without_a_template_says_so() -> None:
    async def body() -> None:
        async with opened(ScriptedBackend(), template=None) as conversation:
            with pytest.raises(PromptError, match="no chat template"):
                await conversation.ask("hi", lambda piece: None)

    run(body)
