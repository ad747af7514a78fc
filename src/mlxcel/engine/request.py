"""What a front end asks of the engine: one request type for every API."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from mlxcel.engine.constraint import Rule
from mlxcel.engine.loops import LoopRule
from mlxcel.engine.thinking import ThinkingRule


class Priority(enum.IntEnum):
    """Order in the prefill queue; lower runs first, first in first out within a class."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


DRY_BREAKERS = ("\n", ":", '"', "*")
"""Texts that repeated runs do not cross, unless others are named."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling of one sequence, fully resolved (request, then server, then checkpoint, then these defaults)."""

    temperature: float = 0.8
    """0 is greedy."""
    top_k: int = 40
    """Keep the k most likely tokens; 0 or at least the vocabulary size keeps all; 1 is greedy."""
    top_p: float = 0.95
    """Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all."""
    min_p: float = 0.05
    """Keep tokens at least this times as likely as the best one; 0 keeps all."""
    min_keep: int = 0
    """Tokens that typical-p, top-p, min-p and XTC leave at least; 0 is one."""
    p_less: bool = False
    """Keep tokens at least as likely as the sum of all squared probabilities."""
    typical_p: float = 1.0
    """Keep the tokens closest to the expected surprise whose probability reaches this; 1 keeps all."""
    top_n_sigma: float = 0.0
    """Keep logits within so many standard deviations of the largest; 0 keeps all."""
    xtc_probability: float = 0.0
    """How often all likely tokens but the least likely of them are taken away."""
    xtc_threshold: float = 0.1
    """Tokens more likely than this are likely ones; above 0.5 there are never two of them."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the window; 1 is off."""
    repetition_context_size: int = 64
    """Window of the repetition penalty in tokens, prompt included; 0 is off, -1 is everything."""
    frequency_penalty: float = 0.0
    """Subtracted per occurrence among the generated tokens."""
    presence_penalty: float = 0.0
    """Subtracted once for each token that was generated before."""
    dry_multiplier: float = 0.0
    """Size of the penalty on going on with a repeated run of tokens; 0 is off."""
    dry_base: float = 1.75
    """What the penalty grows by with each further token of the run."""
    dry_allowed_length: int = 2
    """Length of the shortest run that is penalised."""
    dry_penalty_last_n: int = 0
    """Window in which runs are looked for, prompt included; 0 or less is everything."""
    dry_sequence_breakers: tuple[int | str, ...] = DRY_BREAKERS
    """Token ids and texts that runs do not cross."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each once, and what is added to their logits; -inf bans a token."""
    ignore_eos: bool = False
    """Tokens that end a text never come."""
    mirostat: int = 0
    """1 or 2: truncation under feedback, instead of all others but bias and penalties; 0 is off."""
    mirostat_tau: float = 5.0
    """Surprise that mirostat aims at, in bits."""
    mirostat_eta: float = 0.1
    """How fast mirostat corrects itself."""
    dynatemp_range: float = 0.0
    """By how much the temperature may fall and rise with the certainty of the model; 0 is off."""
    dynatemp_exponent: float = 1.0
    """Shape of that dependence."""
    adaptive_target: float = -1.0
    """Probability of tokens that adaptive-p aims at; negative is off."""
    adaptive_decay: float = 0.9
    """How long adaptive-p remembers; below 1."""
    seed: int | None = None
    """None draws a fresh seed; a number makes the sequence repeatable."""

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def xtc(self) -> bool:
        """True when likely tokens are sometimes taken away."""
        return self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5 and not self.mirostat

    @property
    def adaptive(self) -> bool:
        """True when tokens near a probability are preferred."""
        return self.adaptive_target >= 0.0 and not self.mirostat


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
    loops: LoopRule | None = None
    """When to end a text that repeats itself; None: never."""
    rule: Rule | None = None
    """What the text must be; None: anything."""
    thinking: ThinkingRule | None = None
    """How the model marks its reasoning; None: it is not followed."""
    spelling: Mapping[int, str] = field(default_factory=dict[int, str])
    """Special tokens that are shown in the text, and what as; the others are not."""
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
