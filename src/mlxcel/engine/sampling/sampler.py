"""Sampling of sequences: what each of them remembers, and one step for all rows of a batch.

Every sequence has settings, history and a random generator of its own, so what it says does not depend on its
neighbours.

Between two calls a step of the model has driven all of this out of the processor's caches, and fetching it again is
most of the cost. So little is done here for stages that are off.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.constraint import ConstraintError, Words
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.adaptive_p import AdaptiveP
from mlxcel.engine.sampling.bias import Bias
from mlxcel.engine.sampling.candidates import Floats, SamplingError
from mlxcel.engine.sampling.chain import NO_TOKEN, Step
from mlxcel.engine.sampling.dry import Dry
from mlxcel.engine.sampling.edits import Edits
from mlxcel.engine.sampling.logprobs import Logprobs
from mlxcel.engine.sampling.mirostat import Mirostat
from mlxcel.engine.sampling.penalties import History
from mlxcel.engine.sampling.rows import Rows

_GREEDY = SamplingParams(temperature=0.0)
_GREEDY_STEP = Step(0.0, False, 0.0)


class Sampler:
    """Sampling state of one sequence.

    params: resolved sampling values.
    prompt: token ids that repetition penalty and DRY look back at.
    tokenizer: knows the tokens that end a text, and the text of tokens.
    """

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...], tokenizer: Tokenizer) -> None:
        self._params = params
        self._greedy = params.greedy
        bias, history, dry = (
            Bias(params, tokenizer.eos_token_ids),
            History(params, prompt),
            Dry(params, prompt, tokenizer),
        )
        self._remembering = tuple(stage for stage in (history, dry) if stage.enabled)
        self.edits = (bias, *self._remembering) if bias.enabled else self._remembering
        """The stages that change single logits, in their order."""
        self._feedback: Mirostat | AdaptiveP | None = None
        if params.mirostat and not params.greedy:
            self._feedback = Mirostat(params.mirostat_tau, params.mirostat_eta)
        elif params.adaptive and not params.greedy:
            self._feedback = AdaptiveP(params.adaptive_target, params.adaptive_decay)
        self._xtc_probability = params.xtc_probability if params.xtc else 0.0
        self._chain: Any = None
        self._random = random.Random(secrets.randbits(64) if params.seed is None else params.seed)

    def begin(self, rows: Rows) -> tuple[Any, Step]:
        """The chain and the step, for `rows.choose`."""
        if self._chain is None:
            self._chain = rows.chain(self._params)
        if self._greedy:
            return self._chain, _GREEDY_STEP
        exclude = self._xtc_probability > 0.0 and self._random.random() < self._xtc_probability
        feedback = 0.0 if self._feedback is None else self._feedback.value
        return self._chain, Step(self._random.random(), exclude, feedback)

    def end(self, token: int, share: float | None) -> None:
        """Note what was chosen: the token, and its probability among those it was drawn from; None: it was not."""
        for stage in self._remembering:
            stage.append(token)
        if self._feedback is not None and share is not None:
            self._feedback.observe(share)


class Sampled(Protocol):
    """What is sampled."""

    @property
    def sampler(self) -> Sampler:
        """May fail to be made."""
        ...

    @property
    def mask(self) -> Words | None:
        """The tokens that may come; None: all. May fail."""
        ...

    @property
    def alternatives(self) -> int | None:
        """How many likely tokens to list with the chosen one and its log probability; None: not even that."""
        ...

    @property
    def forced(self) -> int | None:
        """The token to take instead of the one that is drawn, which costs the same random numbers; None: none."""
        ...


class Chosen(NamedTuple):
    """The next token of a sequence."""

    token: int
    logprobs: Logprobs | None = None
    """If they were asked for."""


def sample(sequences: Sequence[Sampled], logits: Floats, rows: Rows) -> list[Chosen | Exception]:
    """The next token of each sequence, which its sampler has noted, or why it has none; that harms no other one.

    logits: a row for each, float32 [rows, vocabulary], in one piece of memory that may be written; the same afterwards.
    One that holds NaN, +inf or nothing but -inf gives a SamplingError; under a mask, which hides what may not come, a
    ConstraintError.
    """
    failures: dict[int, Exception] = {}
    edited: list[Edits] = []
    chains: list[Any] = []
    steps: list[Step] = []
    masks: list[Words | None] = []
    for index, sequence in enumerate(sequences):
        try:
            mask, sampler = sequence.mask, sequence.sampler
            if sampler.edits:
                edits = Edits(logits[index], rows)
                edited.append(edits)
                for stage in sampler.edits:
                    stage.apply(edits)
            chain, step = sampler.begin(rows)
        except Exception as error:
            failures[index] = error
            chain, step, mask = rows.chain(_GREEDY), _GREEDY_STEP, None
        chains.append(chain)
        steps.append(step)
        masks.append(mask)
    choices = rows.choose(logits, chains, steps, masks)
    for edits in edited:
        edits.undo()
    outcomes: list[Chosen | Exception] = []
    wanted: list[tuple[int, int, int]] = []
    for index, (drawn, share) in enumerate(choices):
        sequence = sequences[index]
        if index in failures:
            outcome = failures[index]
        elif drawn == NO_TOKEN:
            outcome = _no_token(masked=masks[index] is not None)
        else:
            outcome = _take(sequence, drawn, share)
        outcomes.append(outcome)
        if isinstance(outcome, Chosen) and (count := sequence.alternatives) is not None:
            wanted.append((index, outcome.token, count))
    if wanted:
        for (index, token, _), found in zip(wanted, rows.logprobs(logits, wanted), strict=True):
            outcomes[index] = Chosen(token, found)
    return outcomes


def _no_token(masked: bool) -> Exception:
    if masked:  # perhaps a bias has banned all that the mask allows
        return ConstraintError("no token that may follow is possible")
    return SamplingError("the model returned logits that are not finite numbers")


def _take(sequence: Sampled, drawn: int, share: float) -> Chosen | Exception:
    """What a sequence goes on with: the token that was drawn, unless another one is forced; or why it cannot."""
    try:
        forced = sequence.forced
        if forced is None:
            sequence.sampler.end(drawn, share)
            return Chosen(drawn)
        sequence.sampler.end(forced, None)
        return Chosen(forced)
    except Exception as error:
        return error
