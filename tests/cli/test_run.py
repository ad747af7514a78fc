from __future__ import annotations

import asyncio
import dataclasses
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mlxcel.cli.command import CommandError
from mlxcel.cli.conversation import Conversation
from mlxcel.cli.main import main
from mlxcel.cli.run import GREEDY, answer_once, converse, open_conversation
from mlxcel.config import EngineConfig, SamplingDefaults, ServerConfig
from mlxcel.engine.backend import Backend
from mlxcel.engine.engine import Engine
from tests.engine.scripted import ScriptedBackend

CONFIG = ServerConfig(engine=EngineConfig(parallel=1))


@contextmanager
def opened(load: Callable[[], Backend], config: ServerConfig = CONFIG) -> Iterator[tuple[asyncio.Runner, Conversation]]:
    with asyncio.Runner() as runner:
        engine = Engine(config.engine, load)
        try:
            yield runner, runner.run(open_conversation(engine, config))
        finally:
            runner.run(engine.close())


def typed(monkeypatch: pytest.MonkeyPatch, *lines: Any) -> None:
    """What the user types; KeyboardInterrupt stands for Ctrl-C."""
    waiting = iter(lines)

    def answer(prompt: str = "") -> str:
        line = next(waiting, EOFError)
        if isinstance(line, str):
            return line
        raise line

    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr("sys.stdin", io.StringIO())


def test_one_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with opened(ScriptedBackend) as (runner, conversation):
        assert answer_once(runner, conversation, "hello") == 0
    assert capsys.readouterr().out == "user: hello\n\n"


def test_no_answer_is_one_clear_error() -> None:
    with (
        opened(lambda: ScriptedBackend(context=600)) as (runner, conversation),
        pytest.raises(CommandError, match="prompt is too long"),
    ):
        answer_once(runner, conversation, "x" * 1000)


def test_a_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    typed(monkeypatch, "one", "", "/clear", "two", "/exit", "never")
    with opened(ScriptedBackend) as (runner, conversation):
        assert converse(runner, conversation) == 0
        assert [message["content"] for message in conversation.messages] == ["two", "user: two\n"]
    assert capsys.readouterr().out == "user: one\n\nuser: two\n\n"


def test_the_end_of_input_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "one")
    with opened(ScriptedBackend) as (runner, conversation):
        assert converse(runner, conversation) == 0


def test_an_error_does_not_end_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(monkeypatch, "x" * 1000, "two")
    with opened(lambda: ScriptedBackend(context=600)) as (runner, conversation):
        assert converse(runner, conversation) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("error: prompt is too long")
    assert captured.out == "user: two\n\n"


def test_two_interrupts_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, KeyboardInterrupt, "one", KeyboardInterrupt, KeyboardInterrupt, "never")
    with opened(ScriptedBackend) as (runner, conversation):
        assert converse(runner, conversation) == 130
        assert conversation.messages[0]["content"] == "one"
        assert len(conversation.messages) == 2


@pytest.fixture
def interruptible() -> Iterator[None]:
    """In the background of a shell script, processes ignore the signal and their children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_an_answer_and_another_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "hello", KeyboardInterrupt, "never")
    backend = ScriptedBackend()

    def interrupt(rows: Any) -> None:
        if len(rows[0].fed) == 20:
            backend.gate.clear()  # or the answer might be complete before the signal is seen
            os.kill(os.getpid(), signal.SIGINT)

    backend.script = lambda prompt: b"a very long answer " * 150
    backend.fail_decode = interrupt
    with opened(lambda: backend) as (runner, conversation):
        assert converse(runner, conversation) == 130
        backend.gate.set()
        question, answer = conversation.messages
        assert question["content"] == "hello"
        assert len(answer["content"]) < 150 * 19


def test_sampling_is_greedy_unless_something_says_otherwise() -> None:
    def sampling(backend: ScriptedBackend, config: ServerConfig = CONFIG) -> Any:
        with opened(lambda: backend, config) as (_, conversation):
            return conversation._sampling

    assert sampling(ScriptedBackend()).greedy
    warm = ScriptedBackend()
    warm.info = dataclasses.replace(warm.info, generation_defaults={"temperature": 0.6, "top_k": 20})
    assert (sampling(warm).temperature, sampling(warm).top_k, sampling(warm).top_p) == (0.6, 20, GREEDY["top_p"])
    flags = dataclasses.replace(CONFIG, sampling=SamplingDefaults(temperature=0.1))
    assert sampling(warm, flags).temperature == 0.1


def test_a_model_that_does_not_load_is_one_clear_error() -> None:
    def load() -> Backend:
        raise RuntimeError("no memory")

    with pytest.raises(CommandError, match="cannot be loaded: RuntimeError: no memory"), opened(load):
        pass


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["./nowhere"], 1, "does not exist"),
        (["--offline"], 1, "mlxcel download smollm2-135m"),
        (["-p"], 2, "-p expects a value"),
        (["a", "b"], 2, "unexpected argument 'b'"),
        (["--port", "1"], 2, "unknown flag --port"),
        (["-c", "100"], 2, "at least 512"),
    ],
)
def test_the_command_refuses(
    argv: list[str],
    code: int,
    words: str,
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLXCEL_MODELS_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["run", *argv]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""
