"""What a front end asks of the engine: one request type for every API."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Priority(enum.IntEnum):
    """Order in the prefill queue; lower runs first, first in first out within a class."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one sequence, fully resolved (request, then server, then checkpoint, then these defaults)."""

    temperature: float = 0.8
    """0 is greedy."""
    top_k: int = 40
    """Keep the k most likely tokens; 0 or at least the vocabulary size keeps all."""
    top_p: float = 0.95
    """Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.05
    """Keep tokens at least this times as likely as the best one; 0 keeps all."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the window; 1 is off."""
    repetition_context_size: int = 64
    """Window of the repetition penalty in tokens, prompt included; 0 is off, -1 is everything."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence among the generated tokens."""
    presence_penalty: float = 0.0
    """Subtracted once for each token that was generated before."""
    seed: int | None = None
    """None draws a fresh seed; a number makes the sequence repeatable."""

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate."""

    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    """Generation budget; None: the rest of the context. Always clamped to the rest of the context."""
    stop: tuple[str, ...] = ()
    """Stop strings; the match and all after it are left out of the text."""
    logprobs: int | None = None
    """None: no log probabilities; n: the chosen token's, with the n most likely alternatives."""
    priority: Priority = Priority.NORMAL
    cache_prompt: bool = True
    """False: read the whole prompt, and leave nothing behind for others."""
    tenant: str = ""
    """Who asks; nothing is shared between two of them."""
    conversation: str = ""
    """What the caller groups requests by; states that cannot be cut are found only within one."""
    history: int | None = None
    """Tokens of the prompt before the generation scaffold: those with which the conversation's next prompt begins."""

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("a prompt needs at least one token")
