"""One sequence in the engine: everything a row of the batch carries, and nothing that rows share."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.constraint import Constraint, Words
from mlxcel.engine.events import Event, Finished, FinishReason, StopKind, Timings, Usage
from mlxcel.engine.loops import LoopDetector
from mlxcel.engine.request import GenerationRequest
from mlxcel.engine.sampling.logprobs import token_logprob
from mlxcel.engine.sampling.sampler import Chosen, Sampler
from mlxcel.engine.text import TextState
from mlxcel.engine.thinking import Thinking

if TYPE_CHECKING:
    from mlxcel.engine.generation import Generation


@dataclass(frozen=True, slots=True)
class ContextShift:
    """A full context loses old tokens instead of ending the generation."""

    context: int
    """Tokens it holds."""
    keep: int
    """First tokens that stay; negative: the prompt."""


class Sequence:
    """State of one request between submission and its last event. Touched by the worker thread only.

    key: number that is unique in the process; the backend knows the sequence by it.
    budget: tokens that may be generated.
    shift: what happens once the context is full; None: `budget` does not let it come to that.
    """

    def __init__(
        self,
        key: int,
        request: GenerationRequest,
        generation: Generation,
        tokenizer: Tokenizer,
        budget: int,
        shift: ContextShift | None = None,
    ) -> None:
        self.key = key
        self.request = request
        self.generation = generation
        self.tokens = list(request.prompt)
        """What the model sees: the prompt and what was generated, less what a full context has pushed out."""
        self.prefilled = 0
        """Tokens that have been read."""
        self.boundary: int | None = None
        """After how many tokens reading stops for a moment, so that the state can be kept."""
        self.arrival = 0
        """Place in the order of arrival."""
        self.started = False
        """True once it has had a slot."""
        self._tokenizer = tokenizer
        self._budget = budget
        self._shift = shift
        self._sampler: Sampler | None = None
        self._constraint: Constraint | None = None
        self._loops = None if request.loops is None else LoopDetector(request.loops, budget)
        self._text = TextState(tokenizer, request.stop, request.spelling)
        self._thinking = None if request.thinking is None else Thinking(request.thinking, tokenizer)
        self._generated = 0
        self._cached = 0
        self._submitted = time.monotonic()
        self._began = self._submitted
        self._first_token: float | None = None

    @property
    def prefill_length(self) -> int:
        """Tokens to prefill: all but the last one, which is the first input of decoding."""
        return len(self.tokens) - 1

    @property
    def next_input(self) -> int:
        """The token the next decode step takes."""
        return self.tokens[-1]

    @property
    def generated(self) -> int:
        """Tokens generated so far, end token not counted."""
        return self._generated

    @property
    def exhausted(self) -> bool:
        """True when nothing (more) may be generated."""
        return self._generated >= self._budget

    @property
    def full(self) -> bool:
        """True when `push_out` must make room before anything more is generated."""
        return self._shift is not None and len(self.tokens) >= self._shift.context

    def start(self, cached: int) -> None:
        """Note that it has a slot, and that its first `cached` tokens need not be read."""
        self.prefilled = cached
        if not self.started:
            self.started = True
            self._cached = cached
            self._began = time.monotonic()

    def push_out(self) -> bool:
        """Drop the older half of the tokens that need not be kept; False when there are none. All is to be read again:
        keys know their positions."""
        assert self._shift is not None
        kept = len(self.request.prompt) if self._shift.keep < 0 else self._shift.keep
        dropped = (len(self.tokens) - kept) // 2
        if dropped < 1:
            return False
        del self.tokens[kept : kept + dropped]
        return True

    @property
    def sampler(self) -> Sampler:
        """What chooses the tokens. Made when it is first asked for, because reading a long prompt takes a moment."""
        if self._sampler is None:
            self._sampler = Sampler(self.request.sampling, self.request.prompt, self._tokenizer)
        return self._sampler

    @property
    def mask(self) -> Words | None:
        """The tokens that may come next; None: all. Raises ConstraintError."""
        constraint = self._held_to()
        return None if constraint is None else constraint.mask

    @property
    def alternatives(self) -> int | None:
        """How many likely tokens to list with each; None: no log probabilities are wanted."""
        return self.request.logprobs

    @property
    def forced(self) -> int | None:
        """The token that comes next, whatever is drawn; None: the one that is drawn."""
        return None if self._thinking is None else self._thinking.forced

    def advance(self, chosen: Chosen) -> list[Event]:
        """Take the next token; events end with `Finished` when it was the last.

        Order of the tests: end token, stop string, complete under the request's rule, budget, loop. Raises
        ConstraintError, when nothing of the token has been said.
        """
        token = chosen.token
        if self._first_token is None:
            self._first_token = time.monotonic()
        if token in self._tokenizer.eos_token_ids:
            return self.finish(FinishReason.STOP, StopKind.EOS)
        constraint = self._held_to()
        complete = constraint is not None and constraint.consume(token)
        self._generated += 1
        self.tokens.append(token)
        entry = None
        if chosen.logprobs is not None:
            entry = token_logprob(token, chosen.logprobs, self._tokenizer, self.request.spelling)
        if self._thinking is not None:
            if self._thinking.forced is not None:
                self._text.interrupt()
            self._thinking.push(token)
        piece = self._text.push(token, entry)
        events: list[Event] = [] if piece is None else [piece]
        if self._text.matched is not None:
            return [*events, self._finished(FinishReason.STOP, StopKind.WORD)]
        if complete:
            return [*events, *self.finish(FinishReason.STOP, StopKind.EOS)]
        if self.exhausted:
            return [*events, *self.finish(FinishReason.LENGTH, StopKind.LIMIT)]
        if self._loops is not None and self._loops.push(token):
            return [*events, *self.finish(FinishReason.STOP, StopKind.NONE)]
        return events

    def finish(self, reason: FinishReason, kind: StopKind, message: str | None = None) -> list[Event]:
        """The last events: text that was held back, then `Finished`."""
        piece = self._text.finish()
        events: list[Event] = [] if piece is None else [piece]
        if self._text.matched is not None and reason is not FinishReason.ERROR:
            reason, kind = FinishReason.STOP, StopKind.WORD
        return [*events, self._finished(reason, kind, message)]

    def _held_to(self) -> Constraint | None:
        """The constraint, begun when it is first asked for."""
        if self._constraint is None and self.request.rule is not None:
            self._constraint = self.request.rule.begin()
        return self._constraint

    def _finished(self, reason: FinishReason, kind: StopKind, message: str | None = None) -> Finished:
        now = time.monotonic()
        first = self._first_token or now
        return Finished(
            reason=reason,
            kind=kind,
            usage=Usage(
                len(self.request.prompt),
                self._generated,
                self._cached,
                0 if self._thinking is None else self._thinking.tokens,
            ),
            timings=Timings(self._began - self._submitted, first - self._began, now - first),
            stop_string=self._text.matched,
            message=message,
        )
