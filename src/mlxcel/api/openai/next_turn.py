"""What an answer leaves behind for the next turn of its conversation, where a model's state cannot be cut: its
reasoning, and the state after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import anyio.to_thread

from mlxcel.api.openai.caching import wants_cache
from mlxcel.api.openai.messages import plain_messages
from mlxcel.api.openai.schema import ChatRequest
from mlxcel.api.state import AppState, ServedModel
from mlxcel.chat.errors import PromptError
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.request import GenerationRequest


def matters(state: AppState, model: ServedModel, chat: ChatRequest) -> bool:
    """Whether the next turn of a conversation should begin with what this one was. Raises ApiError 400."""
    return model.info.reuse is Reuse.WHOLE and state.config.cache.kept and wants_cache(chat)


class NextTurn:
    """Prepares for the turn after one answer.

    request: the one that was answered. arguments: how its prompt was rendered; called on another thread.
    """

    def __init__(
        self,
        state: AppState,
        model: ServedModel,
        chat: ChatRequest,
        request: GenerationRequest,
        arguments: Callable[[], dict[str, Any]],
    ) -> None:
        self._state = state
        self._model = model
        self._chat = chat
        self._request = request
        self._arguments = arguments

    def answered(self, content: str, reasoning: str) -> None:
        """The answer has ended."""
        answer = {"role": "assistant", "content": content}
        self._state.echo.remember(self._request.tenant, plain_messages(self._chat.messages), answer, reasoning)
        # An answer that was begun by the client, or that holds calls, will come back as another message.
        whole = self._chat.messages[-1].role != "assistant" and not self._chat.tools
        if whole and (self._chat.n or 1) == 1 and self._state.config.cache.warm_up:
            self._state.spawn(self._read_ahead({**answer, "reasoning_content": reasoning or None}))

    async def _read_ahead(self, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(PromptError):
            tokens = await anyio.to_thread.run_sync(self._beginning, answer, limiter=self._state.prompt_threads)
            if tokens:
                prompt = (*tokens, tokens[-1])  # the last one is not read
                self._state.engine.warm_up(dataclasses.replace(self._request, prompt=prompt, history=len(tokens)))

    def _beginning(self, answer: Mapping[str, Any]) -> tuple[int, ...]:
        arguments = self._arguments()
        return self._model.prompts.next_beginning(
            arguments["messages"], answer, kwargs=arguments["kwargs"], tools=arguments["tools"]
        )
