"""`mlxcel run`: talk to a model in the terminal, or ask it one thing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mlxcel.cli.command import EXIT_INTERRUPTED, Command, CommandError
from mlxcel.cli.configure import configure
from mlxcel.cli.flag import row
from mlxcel.cli.flags_generation import CONTEXT_FLAGS, SAMPLING_FLAGS, TEMPLATE_FLAGS
from mlxcel.cli.flags_serving import DEVICE_FLAGS, GENERAL_FLAGS, HUB_FLAGS, LOG_FLAGS, store_root
from mlxcel.cli.loading import make_engine, wait_loaded
from mlxcel.cli.parser import Arguments
from mlxcel.cli.process import interruptible
from mlxcel.cli.progress import shown_progress
from mlxcel.cli.values import text
from mlxcel.config import EngineConfig, LogConfig, ModelConfig, ServerConfig
from mlxcel.models.catalogue import DEFAULT_MODEL
from mlxcel.models.resolve import ResolvedModel, resolve
from mlxcel.telemetry.logs import setup_logging

if TYPE_CHECKING:
    from mlxcel.cli.conversation import Conversation
    from mlxcel.engine.engine import Engine

GREEDY: Mapping[str, Any] = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What the terminal starts from; the checkpoint's generation defaults and the flags come on top."""

FLAGS = (
    row("Conversation", "--prompt -p", text("TEXT"), "", "Answer this one prompt and exit"),
    *CONTEXT_FLAGS,
    *SAMPLING_FLAGS,
    *TEMPLATE_FLAGS,
    *DEVICE_FLAGS,
    *HUB_FLAGS,
    store_root("--models-dir --model-store-root"),
    *LOG_FLAGS,
    *GENERAL_FLAGS,
)


def main(argv: Sequence[str], program: str = "mlxcel run") -> int:
    """Converse with the model named."""
    summary = f"Talk to a model in the terminal, or ask it one thing with -p. Without a name it is {DEFAULT_MODEL}."
    note = "In a conversation: /clear forgets it, /exit or Ctrl-D leaves, Ctrl-C stops an answer and twice leaves."
    return Command(program, "[MODEL]", summary, FLAGS, _run, most_operands=1, note=note).main(argv)


def _run(arguments: Arguments) -> int:
    base = ServerConfig(
        model=ModelConfig(model=arguments.operands[0] if arguments.operands else DEFAULT_MODEL),
        engine=EngineConfig(parallel=1),
        log=LogConfig(verbosity=2),
    )
    config = configure(arguments, base)
    # Standard output is for the answer alone.
    setup_logging(config.log, secrets=(config.model.hf_token or "",), stream=sys.stderr)
    with interruptible():
        with shown_progress(sys.stderr, os.environ) as progress:
            model = resolve(config.model, progress)
        return _converse_with(config, model, arguments.get("--prompt"))


def _converse_with(config: ServerConfig, model: ResolvedModel, prompt: str | None) -> int:
    engine = make_engine(config, model)
    with asyncio.Runner() as runner:
        try:
            conversation = runner.run(open_conversation(engine, config))
            if prompt:
                return answer_once(runner, conversation, prompt)
            return converse(runner, conversation)
        finally:
            # A worker in the middle of a long prompt is not waited for: the process ends anyway.
            runner.run(engine.close(patience=1.0))


async def open_conversation(engine: Engine, config: ServerConfig) -> Conversation:
    """Start the engine and wait for its model. Raises ModelError or CommandError."""
    from mlxcel.api.state import serve_model
    from mlxcel.cli.conversation import Conversation

    engine.start()
    info = await wait_loaded(engine)
    model = serve_model(dataclasses.replace(info, generation_defaults={**GREEDY, **info.generation_defaults}), config)
    budget = config.engine.n_predict
    return Conversation(engine, model.prompts, model.sampling, budget if budget >= 0 else None, model.loops)


def answer_once(runner: asyncio.Runner, conversation: Conversation, prompt: str) -> int:
    """Write one answer to standard output. Raises CommandError when there is none."""
    try:
        _ask(runner, conversation, prompt)
    except KeyboardInterrupt:
        print()
        raise
    return 0


def converse(runner: asyncio.Runner, conversation: Conversation) -> int:
    """Read questions from standard input and write the answers, until the end of input or `/exit`.

    Ctrl-C stops an answer; a second one without a question in between leaves.
    """
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # gives input() its line editing and history
    interactive = sys.stdin.isatty()
    interrupted = False
    while True:
        try:
            question = input("> " if interactive else "").strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            print()
            if interrupted:
                return EXIT_INTERRUPTED
            interrupted = True
            print("once more to leave", file=sys.stderr)
            continue
        interrupted = False
        if question == "/exit":
            return 0
        if question == "/clear":
            conversation.messages.clear()
        elif question:
            interrupted = _take_turn(runner, conversation, question)
    if interactive:
        print()
    return 0


def _take_turn(runner: asyncio.Runner, conversation: Conversation, question: str) -> bool:
    """Answer one question of a conversation; True when the user stopped the answer."""
    try:
        _ask(runner, conversation, question)
    except KeyboardInterrupt:
        print()
        return True
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
    return False


def _ask(runner: asyncio.Runner, conversation: Conversation, question: str) -> None:
    from mlxcel.chat.errors import PromptError
    from mlxcel.cli.conversation import AnswerError
    from mlxcel.engine.errors import EngineError

    try:
        runner.run(conversation.ask(question, _write))
    except (PromptError, AnswerError, EngineError) as error:
        raise CommandError(str(error)) from error
    print()


def _write(piece: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(piece.encode(encoding, "replace").decode(encoding), end="", flush=True)
