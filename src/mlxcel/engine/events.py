"""What comes out of the engine for one sequence: text as it is released, then exactly one `Finished`."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class FinishReason(enum.StrEnum):
    """Why a sequence ended, in the words of the OpenAI wire format."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


class StopKind(enum.StrEnum):
    """What exactly ended a sequence, in the words of llama-server's `stop_type`."""

    EOS = "eos"
    WORD = "word"
    LIMIT = "limit"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One token with its log probability under the model's own distribution (before penalties and filters)."""

    token_id: int
    text: str
    """The token's bytes decoded alone; bytes that are not UTF-8 by themselves become U+FFFD."""
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """The chosen token and the most likely alternatives, best first."""

    chosen: TokenChoice
    top: tuple[TokenChoice, ...]


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that can no longer change. `text` may be empty when only `logprobs` are new."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """Entries of the tokens whose text ends in this piece; empty unless the request asked."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one sequence. The end-of-sequence token is not counted."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the completion tokens: those inside reasoning blocks, where the request said how they are marked."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall time of one sequence in seconds."""

    queued: float
    """From submission to the first prefill step."""
    prefill: float
    """From the first prefill step to the first token."""
    decode: float
    """From the first token to the last."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a sequence."""

    reason: FinishReason
    kind: StopKind
    usage: Usage
    timings: Timings
    stop_string: str | None = None
    """The stop string that matched, when `kind` is WORD."""
    message: str | None = None
    """What went wrong, when `reason` is ERROR."""


Event = TextPiece | Finished
