"""Request bodies as msgspec types. Fields not named here are ignored; a wrong type or range is a decoding error."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

LIMIT = 10_000.0
"""Bound on free real numbers: far outside any use, and inside what float32 arithmetic bears."""

Natural = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0, le=1)]
NonNegative = Annotated[float, Meta(ge=0, le=LIMIT)]
Real = Annotated[float, Meta(ge=-LIMIT, le=LIMIT)]
Factor = Annotated[float, Meta(ge=1 / LIMIT, le=LIMIT)]
MinusOneOrMore = Annotated[int, Meta(ge=-1)]
TokenBias = Annotated[float, Meta(ge=-100, le=100)] | bool
"""Added to a token's logit; false bans it."""

StopString = Annotated[str, Meta(max_length=1024)]
StopStrings = Annotated[list[StopString], Meta(max_length=64)]
"""Every one is followed through every token, on the thread that all rows share."""


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class ResponseFormat(msgspec.Struct):
    """`response_format`; `mlxcel.api.openai.structured` reads it."""

    type: str | None = None
    json_schema: Any = None


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields that chat and text completions share."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    stop: StopString | StopStrings | None = None
    cache_prompt: bool | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    extra_body: dict[str, Any] | None = None

    max_tokens: Natural | None = None
    n_predict: Natural | None = None
    max_completion_tokens: Natural | None = None

    temperature: NonNegative | None = None
    top_k: MinusOneOrMore | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    min_keep: Natural | None = None
    repetition_penalty: Factor | None = None
    repeat_penalty: Factor | None = None
    repetition_context_size: MinusOneOrMore | None = None
    repeat_last_n: MinusOneOrMore | None = None
    frequency_penalty: Real | None = None
    presence_penalty: Real | None = None
    seed: MinusOneOrMore | None = None

    p_less: bool | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_n_sigma: NonNegative | None = None
    xtc_probability: Probability | None = None
    xtc_threshold: Annotated[float, Meta(ge=0, le=0.5)] | None = None
    dry_multiplier: NonNegative | None = None
    dry_base: NonNegative | None = None
    dry_allowed_length: Natural | None = None
    dry_penalty_last_n: MinusOneOrMore | None = None
    dry_sequence_breakers: Annotated[list[Natural | StopString], Meta(max_length=1024)] | None = None
    logit_bias: dict[Natural, TokenBias] | list[tuple[Natural, TokenBias]] | None = None
    ignore_eos: bool | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: NonNegative | None = None
    mirostat_eta: NonNegative | None = None
    dynatemp_range: NonNegative | None = None
    dynatemp_exponent: NonNegative | None = None
    adaptive_target: Annotated[float, Meta(ge=-LIMIT, le=1)] | None = None
    adaptive_decay: Annotated[float, Meta(ge=0, le=0.99)] | None = None

    max_pattern_size: Natural | None = None
    min_pattern_size: Natural | None = None
    min_count: Natural | None = None

    thinking_budget_tokens: MinusOneOrMore | None = None
    reasoning_budget_tokens: MinusOneOrMore | None = None
    thinking_token_budget: MinusOneOrMore | None = None
    thinking_budget: MinusOneOrMore | None = None

    # Known, but served only at the values that switch them off (see `mlxcel.api.openai.unserved`).
    samplers: str | list[str] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Stop strings without the empty ones."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in stop if text)


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """Text inside a list of content parts."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    """An earlier answer in which the assistant refused."""

    refusal: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    """A picture; nothing in it is read."""


class VideoPart(msgspec.Struct, tag_field="type", tag="video_url"):
    """A film; nothing in it is read."""


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    """A sound; nothing in it is read."""


class CalledFunction(msgspec.Struct):
    """Name and arguments (JSON text) of a call the assistant made earlier."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(msgspec.Struct):
    """A call in an earlier assistant message."""

    function: CalledFunction
    id: str | None = None
    type: str | None = "function"


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | RefusalPart | ImagePart | VideoPart | AudioPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class ChatRequest(GenerationFields, kw_only=True):
    """Body of a chat completion."""

    messages: list[Message]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    preserve_thinking: bool | None = None
    reasoning_effort: str | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    """Body of a text completion."""

    prompt: str | list[str | int]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: int | None = None
    echo: bool | None = None
    suffix: str | None = None
