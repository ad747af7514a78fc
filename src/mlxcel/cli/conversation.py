"""A conversation with a model in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mlxcel.chat.prompt import PromptBuilder
from mlxcel.engine.events import Finished, FinishReason, TextPiece
from mlxcel.engine.generation import Generation
from mlxcel.engine.loops import LoopRule
from mlxcel.engine.request import GenerationRequest, SamplingParams


class Submits(Protocol):
    """The part of an engine that a conversation needs."""

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Queue requests."""
        ...


class AnswerError(Exception):
    """A question gets no answer, or only part of one. The message is one clear line."""


class Conversation:
    """Messages so far, and the way to the next answer.

    max_tokens: length of one answer; None: the rest of the context.
    loops: when an answer that repeats itself ends; None: never.
    """

    def __init__(
        self,
        engine: Submits,
        prompts: PromptBuilder,
        sampling: SamplingParams,
        max_tokens: int | None,
        loops: LoopRule | None = None,
    ) -> None:
        self._engine = engine
        self._prompts = prompts
        self._sampling = sampling
        self._max_tokens = max_tokens
        self._loops = loops
        self.messages: list[dict[str, Any]] = []

    async def ask(self, question: str, write: Callable[[str], None]) -> Finished:
        """Write the answer piece by piece as it comes.

        When the task is cancelled, the answer so far stays in the conversation. Raises AnswerError,
        PromptError and the engine's errors; then the question is forgotten.
        """
        messages = [*self.messages, {"role": "user", "content": question}]
        prompt = self._prompts.chat(messages, kwargs={}, history=True)
        request = GenerationRequest(
            prompt.tokens,
            sampling=self._sampling,
            max_tokens=self._max_tokens,
            loops=self._loops,
            history=prompt.history,
        )
        (generation,) = self._engine.submit([request])
        pieces: list[str] = []
        finished: Finished | None = None
        try:
            async for event in generation:
                match event:
                    case TextPiece():
                        pieces.append(event.text)
                        write(event.text)
                    case Finished():
                        finished = event
        except asyncio.CancelledError:
            self._remember(question, pieces)
            raise
        finally:
            generation.cancel()
        if finished is None:
            raise AnswerError("the model has stopped answering")
        if finished.reason is FinishReason.ERROR:
            raise AnswerError(finished.message or "the model failed")
        self._remember(question, pieces)
        return finished

    def _remember(self, question: str, pieces: Sequence[str]) -> None:
        self.messages.append({"role": "user", "content": question})
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
