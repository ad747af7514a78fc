"""What the handlers of one application share."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import anyio

from mlxcel.api.body import BodyReader
from mlxcel.api.openai.sampling import resolve_defaults
from mlxcel.api.totals import RequestTotals
from mlxcel.chat.echo import ReasoningEcho
from mlxcel.chat.kwargs import server_kwargs
from mlxcel.chat.prompt import PromptBuilder
from mlxcel.config import ServerConfig
from mlxcel.engine.backend import ModelInfo
from mlxcel.engine.engine import Engine
from mlxcel.engine.loops import VARIABLE, LoopRule, server_rule
from mlxcel.engine.request import SamplingParams
from mlxcel.grammar.compiler import Compiler

log = logging.getLogger(__name__)

PROMPT_THREADS = 2
"""They share the interpreter lock with the event loop: more would only make running streams wait longer."""

GRAMMAR_THREADS = 2


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model with what is derived from it once."""

    info: ModelInfo
    prompts: PromptBuilder
    sampling: SamplingParams
    """Sampling of a request that names no field."""
    loops: LoopRule | None
    """When the text of such a request ends for repeating itself."""
    grammars: Compiler
    """Makes rules for answers."""


def serve_model(info: ModelInfo, config: ServerConfig) -> ServedModel:
    """Compile the chat template and resolve the sampling defaults of a loaded model, in part from the environment."""
    prompts = PromptBuilder(
        config.model.chat_template or info.chat_template,
        info.special_tokens,
        info.tokenizer,
        server_kwargs(config.chat, config.model.chat_template_kwargs),
    )
    if prompts.problem is not None:
        log.warning("no chat: %s", prompts.problem)
    sampling = resolve_defaults(config.sampling, info.generation_defaults)
    loops = server_rule(os.environ.get(VARIABLE), info.architecture)
    return ServedModel(info, prompts, sampling, loops, Compiler(info))


class AppState:
    """Engine, configuration, and the model once it is there."""

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.created = int(time.time())
        """Unix time of the start, reported as the model's creation too."""
        self.totals = RequestTotals()
        self.echo = ReasoningEcho(config.chat.reasoning_echo)
        self.bodies = BodyReader(config.network.max_body_bytes)
        self.prompt_threads = anyio.CapacityLimiter(PROMPT_THREADS)
        """Threads that render and tokenise prompts."""
        self.grammar_threads = anyio.CapacityLimiter(GRAMMAR_THREADS)
        """Threads that compile schemas, which nobody's prompt has to wait for."""
        self._model: ServedModel | None = None
        self._preparing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that no request waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def context_size(self) -> int:
        """Tokens of context in a slot, for people; 0: the model's own window. Raises Loading or Dead."""
        return self.engine.slot_context if self.config.engine.ctx_size > 0 else 0

    async def prepare(self) -> None:
        """Wait for the model and get everything ready that is made of it once. Raises what loading raised."""
        await self.engine.wait_ready()
        model = await self.model()
        await anyio.to_thread.run_sync(model.grammars.prepare, limiter=self.grammar_threads)

    async def model(self) -> ServedModel:
        """The loaded model. Raises Loading, Dead or Stuck."""
        info = self.engine.info
        async with self._preparing:
            if self._model is None:
                # Compiling and probing a template takes a moment, and one made to be slow takes seconds.
                self._model = await anyio.to_thread.run_sync(
                    serve_model, info, self.config, limiter=self.prompt_threads
                )
        return self._model
