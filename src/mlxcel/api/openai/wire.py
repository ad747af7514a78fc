"""Response bodies of both completion routes: the structs, and the two ways to write a generation in them."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from mlxcel.api.openai.logprobs import ChatLogprobs, LegacyFormatter, LegacyLogprobs, chat_logprobs
from mlxcel.chat.answer import AnswerPart, AnswerStream
from mlxcel.chat.stream import MessagePart
from mlxcel.chat.tools import CallArguments, CallStart
from mlxcel.engine.events import Finished, FinishReason, TextPiece, TokenLogprob

log = logging.getLogger(__name__)


class PromptDetails(msgspec.Struct):
    """How much of the prompt was in the cache."""

    cached_tokens: int


class Usage(msgspec.Struct):
    """Token counts over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET


class FunctionDelta(msgspec.Struct):
    """A part of a call: its name first, then pieces of its arguments (JSON text)."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class CallDelta(msgspec.Struct):
    """What a chunk adds to the `index`-th call of an answer."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class CalledFunction(msgspec.Struct):
    """The function a call is to, with its arguments as JSON text."""

    name: str
    arguments: str


class Call(msgspec.Struct):
    """A complete call."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class Delta(msgspec.Struct):
    """What a chat chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_only: bool | UnsetType = UNSET
    tool_calls: list[CallDelta] | UnsetType = UNSET


class AssistantMessage(msgspec.Struct):
    """The answer of a chat completion."""

    role: Literal["assistant"]
    content: str | None
    """None: nothing but calls."""
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_only: bool | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """One choice of a chat chunk."""

    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class ChatChoice(msgspec.Struct):
    """One choice of a chat completion."""

    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None


class TextDelta(msgspec.Struct):
    """The new text of a completion chunk, once more."""

    text: str


class TextChoice(msgspec.Struct):
    """One choice of a text completion, whole or in part."""

    index: int
    text: str
    finish_reason: FinishReason | None
    logprobs: LegacyLogprobs | None
    delta: TextDelta | UnsetType = UNSET


class Envelope(msgspec.Struct):
    """Any body of these routes."""

    id: str
    object: Literal["chat.completion", "chat.completion.chunk", "text_completion"]
    created: int
    model: str
    system_fingerprint: None
    choices: Sequence[ChatChunkChoice | ChatChoice | TextChoice]
    usage: Usage | UnsetType = UNSET


@dataclass(slots=True)
class Choice:
    """One generation, complete."""

    pieces: list[TextPiece]
    finished: Finished

    @property
    def text(self) -> str:
        """All of its text."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """An entry for each token, if they were asked for."""
        return [entry for piece in self.pieces for entry in piece.logprobs]


class Wire(Protocol):
    """How one route writes a response. Every method returns encoded JSON."""

    def opening(self, index: int) -> bytes | None:
        """The chunk before a choice's text, where there is one."""
        ...

    def piece(self, index: int, piece: TextPiece) -> list[bytes]:
        """The chunks with what is certain after more of a choice's text."""
        ...

    def finish(self, index: int, finished: Finished) -> list[bytes]:
        """A choice's last chunks."""
        ...

    def usage(self, usage: Usage) -> bytes:
        """The chunk with the counts, after all choices."""
        ...

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        """The answer that is not streamed."""
        ...


def _new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(12)}"


def _now() -> int:
    return int(time.time())


class ChatWire:
    """Bodies of `/v1/chat/completions`.

    logprobs: whether they were asked for.
    streams: one for each choice.
    alias: the reasoning also stands under the name `reasoning`.
    """

    def __init__(self, model: str, logprobs: bool, streams: Sequence[AnswerStream], *, alias: bool) -> None:
        self._model = model
        self._logprobs = logprobs
        self._streams = streams
        self._alias = alias
        self._id = _new_id("chatcmpl")
        self._created = _now()

    def opening(self, index: int) -> bytes | None:
        return self._chunk(ChatChunkChoice(index, Delta(role="assistant")))

    def piece(self, index: int, piece: TextPiece) -> list[bytes]:
        return [self._part(index, part) for part in self._streams[index].feed(piece)]

    def finish(self, index: int, finished: Finished) -> list[bytes]:
        stream = self._streams[index]
        parts = [self._part(index, part) for part in self._last_parts(stream, finished)]
        last = Delta(reasoning_only=stream.reasoning_only or UNSET)
        return [*parts, self._chunk(ChatChunkChoice(index, last, stream.finish_reason))]

    def usage(self, usage: Usage) -> bytes:
        return self._encode("chat.completion.chunk", [], usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        bodies: list[ChatChoice] = []
        for index, (choice, stream) in enumerate(zip(choices, self._streams, strict=True)):
            message = self._message(stream, choice)
            logprobs = chat_logprobs(choice.logprobs) if self._logprobs else None
            bodies.append(ChatChoice(index, message, stream.finish_reason, logprobs))
        return self._encode("chat.completion", bodies, usage)

    def _message(self, stream: AnswerStream, choice: Choice) -> AssistantMessage:
        parts = [part for piece in choice.pieces for part in stream.feed(piece)]
        parts += self._last_parts(stream, choice.finished)
        texts = [part for part in parts if isinstance(part, MessagePart)]
        content = "".join(part.content for part in texts)
        reasoning = "".join(part.reasoning for part in texts) or UNSET
        calls = [Call(call.id, "function", CalledFunction(call.name, call.arguments)) for call in stream.calls]
        return AssistantMessage(
            "assistant",
            None if calls and not content else content,
            reasoning,
            reasoning if self._alias else UNSET,
            stream.reasoning_only or UNSET,
            calls or UNSET,
        )

    def _last_parts(self, stream: AnswerStream, finished: Finished) -> list[AnswerPart]:
        parts = stream.finish(finished.reason, finished.kind, finished.stop_string)
        if stream.problem is not None:
            log.warning("%s: %s", self._id, stream.problem)
        return parts

    def _part(self, index: int, part: AnswerPart) -> bytes:
        if isinstance(part, CallStart):
            call = CallDelta(part.index, FunctionDelta(name=part.name), part.id, "function")
            return self._chunk(ChatChunkChoice(index, Delta(tool_calls=[call])))
        if isinstance(part, CallArguments):
            call = CallDelta(part.index, FunctionDelta(arguments=part.text))
            return self._chunk(ChatChunkChoice(index, Delta(tool_calls=[call])))
        reasoning = part.reasoning or UNSET
        delta = Delta(
            content=part.content if part.content or not part.reasoning else UNSET,
            reasoning_content=reasoning,
            reasoning=reasoning if self._alias else UNSET,
        )
        logprobs = chat_logprobs(part.logprobs) if part.logprobs else None
        return self._chunk(ChatChunkChoice(index, delta, logprobs=logprobs))

    def _chunk(self, choice: ChatChunkChoice) -> bytes:
        return self._encode("chat.completion.chunk", [choice])

    def _encode(
        self,
        kind: Literal["chat.completion", "chat.completion.chunk"],
        choices: Sequence[ChatChunkChoice | ChatChoice],
        usage: Usage | UnsetType = UNSET,
    ) -> bytes:
        return msgspec.json.encode(Envelope(self._id, kind, self._created, self._model, None, choices, usage))


class TextWire:
    """Bodies of `/v1/completions`.

    logprobs: alternatives per token, None for no log probabilities. choices: number of choices.
    """

    def __init__(self, model: str, logprobs: int | None, choices: int) -> None:
        self._model = model
        self._id = _new_id("cmpl")
        self._created = _now()
        self._formatters = [None if logprobs is None else LegacyFormatter(logprobs) for _ in range(choices)]

    def opening(self, index: int) -> bytes | None:
        return None

    def piece(self, index: int, piece: TextPiece) -> list[bytes]:
        return [self._chunk(index, piece.text, None, self._format(index, piece.logprobs) if piece.logprobs else None)]

    def finish(self, index: int, finished: Finished) -> list[bytes]:
        return [self._chunk(index, "", finished.reason, None)]

    def usage(self, usage: Usage) -> bytes:
        return self._encode([], usage)

    def whole(self, choices: Sequence[Choice], usage: Usage) -> bytes:
        return self._encode(
            [
                TextChoice(index, choice.text, choice.finished.reason, self._format(index, choice.logprobs))
                for index, choice in enumerate(choices)
            ],
            usage,
        )

    def _format(self, index: int, entries: Sequence[TokenLogprob]) -> LegacyLogprobs | None:
        formatter = self._formatters[index]
        return None if formatter is None else formatter.format(entries)

    def _chunk(self, index: int, text: str, reason: FinishReason | None, logprobs: LegacyLogprobs | None) -> bytes:
        return self._encode([TextChoice(index, text, reason, logprobs, TextDelta(text))])

    def _encode(self, choices: Sequence[TextChoice], usage: Usage | UnsetType = UNSET) -> bytes:
        return msgspec.json.encode(
            Envelope(self._id, "text_completion", self._created, self._model, None, choices, usage)
        )
