"""What an answer leaves behind for the next turn of its conversation, where a model's state cannot be cut: its
reasoning, and the state after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

import anyio.to_thread

from mlxcel.api.openai.caching import wants_cache
from mlxcel.api.openai.schema import ChatRequest
from mlxcel.api.state import AppState, ServedModel
from mlxcel.chat.errors import PromptError
from mlxcel.chat.overheard import Overheard
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.request import GenerationRequest


def matters(state: AppState, model: ServedModel, chat: ChatRequest) -> bool:
    """Whether the next turn of a conversation should begin with what this one was. Raises ApiError 400."""
    return model.info.reuse is Reuse.WHOLE and state.config.cache.kept and wants_cache(chat)


class NextTurn:
    """Prepares for the turn after one answer.

    chat: the request that is answered. arguments: how its prompt was rendered. said: what `ReasoningEcho.recall` gave
    for its messages.
    """

    def __init__(
        self, state: AppState, model: ServedModel, chat: ChatRequest, arguments: Mapping[str, Any], said: bytes
    ) -> None:
        self._state = state
        self._model = model
        self._chat = chat
        self._arguments = arguments
        self._said = said

    def answered(self, request: GenerationRequest, answer: Overheard) -> None:
        """`answer` has ended; `request` is what it was generated for."""
        self._state.echo.remember(self._said, answer.message, answer.reasoning)
        # An answer that was begun by the client will come back as another message.
        whole = self._chat.messages[-1].role != "assistant"
        if whole and (self._chat.n or 1) == 1 and self._state.config.cache.warm_up:
            self._state.spawn(self._read_ahead(request, answer))

    async def _read_ahead(self, request: GenerationRequest, answer: Overheard) -> None:
        message = {**answer.message, "reasoning_content": answer.reasoning or None}
        with contextlib.suppress(PromptError):
            tokens = await anyio.to_thread.run_sync(self._beginning, message, limiter=self._state.prompt_threads)
            if tokens:
                prompt = (*tokens, tokens[-1])  # the last one is not read
                self._state.engine.warm_up(dataclasses.replace(request, prompt=prompt, history=len(tokens)))

    def _beginning(self, answer: Mapping[str, Any]) -> tuple[int, ...]:
        arguments = self._arguments
        return self._model.prompts.next_beginning(
            arguments["messages"], answer, kwargs=arguments["kwargs"], tools=arguments["tools"]
        )
