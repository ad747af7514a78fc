"""Sampling of sequences: what each of them remembers, and one step for all rows of a batch.

Every sequence has settings, history and a random generator of its own, so what it says does not depend on its
neighbours.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mlxcel.engine.backend import Tokenizer
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


class Sampler:
    """Sampling state of one sequence.

    params: resolved sampling values.
    prompt: token ids that repetition penalty and DRY look back at.
    tokenizer: knows the tokens that end a text, and the text of tokens.
    """

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...], tokenizer: Tokenizer) -> None:
        self._params = params
        self._bias = Bias(params, tokenizer.eos_token_ids)
        self._history = History(params, prompt)
        self._dry = Dry(params, prompt, tokenizer)
        self._feedback: Mirostat | AdaptiveP | None = None
        if params.mirostat:
            self._feedback = Mirostat(params.mirostat_tau, params.mirostat_eta)
        elif params.adaptive:
            self._feedback = AdaptiveP(params.adaptive_target, params.adaptive_decay)
        self._chain: Any = None
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._random = np.random.Generator(np.random.PCG64(seed))

    def edit(self, edits: Edits) -> None:
        """Apply bias and penalties to a row."""
        for stage in (self._bias, self._history, self._dry):
            if stage.active:
                stage.apply(edits)

    def begin(self, rows: Rows) -> tuple[Any, Step]:
        """The chain and the step, for `rows.choose`."""
        if self._chain is None:
            self._chain = rows.chain(self._params)
        return self._chain, self._next_step()

    def end(self, token: int, share: float) -> None:
        """Note what was chosen: the token, and its probability among those it was drawn from."""
        self._history.append(token)
        self._dry.append(token)
        if self._feedback is not None and not self._params.greedy:
            self._feedback.observe(share)

    def _next_step(self) -> Step:
        params = self._params
        if params.greedy:
            return _GREEDY_STEP
        exclude = params.xtc and self._random.random() < params.xtc_probability
        return Step(self._random.random(), exclude, 0.0 if self._feedback is None else self._feedback.value)


_GREEDY_STEP = Step(0.0, False, 0.0)


class Sampled(Protocol):
    """What is sampled."""

    @property
    def sampler(self) -> Sampler:
        """May fail to be made."""
        ...

    @property
    def alternatives(self) -> int | None:
        """How many likely tokens to list with the chosen one and its log probability; None: not even that."""
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """The next token of a sequence."""

    token: int
    logprobs: Logprobs | None = None
    """If they were asked for."""


def sample(sequences: Sequence[Sampled], logits: Floats, rows: Rows) -> list[Chosen | Exception]:
    """The next token of each sequence, which its sampler has noted, or why it has none; that harms no other one.

    logits: a row for each, float32 [rows, vocabulary], the same afterwards. One that holds NaN, +inf or nothing but
    -inf gives a SamplingError.
    """
    logits = np.require(logits, requirements=("C", "W"))  # a copy only if it must be
    outcomes: list[Chosen | Exception] = []
    edits = [Edits(row, rows) for row in logits]
    begun: list[int] = []
    chains: list[Any] = []
    steps: list[Step] = []
    for index, sequence in enumerate(sequences):
        try:
            sequence.sampler.edit(edits[index])
            chain, step = sequence.sampler.begin(rows)
        except Exception as error:
            outcomes.append(error)
            continue
        outcomes.append(SamplingError("the model returned logits that are not finite numbers"))
        begun.append(index)
        chains.append(chain)
        steps.append(step)
    choices = rows.choose([edits[index].row for index in begun], chains, steps)
    for edit in edits:
        edit.undo()
    for index, (token, share) in zip(begun, choices, strict=True):
        if token != NO_TOKEN:
            sequences[index].sampler.end(token, share)
            outcomes[index] = Chosen(token)
    _add_logprobs(outcomes, [sequence.alternatives for sequence in sequences], logits, rows)
    return outcomes


def _add_logprobs(
    outcomes: list[Chosen | Exception], alternatives: Sequence[int | None], logits: Floats, rows: Rows
) -> None:
    indices: list[int] = []
    tokens: list[int] = []
    counts: list[int] = []
    for index, (outcome, count) in enumerate(zip(outcomes, alternatives, strict=True)):
        if count is not None and isinstance(outcome, Chosen):
            indices.append(index)
            tokens.append(outcome.token)
            counts.append(count)
    if not indices:
        return
    found = rows.logprobs([logits[index] for index in indices], tokens, counts)
    for index, token, entry in zip(indices, tokens, found, strict=True):
        outcomes[index] = Chosen(token, entry)
