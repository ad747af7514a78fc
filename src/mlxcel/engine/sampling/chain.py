"""The sampling chain of one sequence: penalties, top-k, top-p, min-p, temperature, draw.

Filters look at the untempered distribution and temperature is applied once, at the end. A stage that is off costs
nothing. Every sequence has a random generator of its own, so a seeded sequence does not depend on its neighbours.
"""

from __future__ import annotations

import math
import secrets

import numpy as np

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Candidates, SamplingError
from mlxcel.engine.sampling.filters import min_p, top_k, top_p
from mlxcel.engine.sampling.penalties import History
from mlxcel.engine.sampling.rows import Floats, Rows, rows


class Sampler:
    """Sampling state of one sequence.

    params: resolved sampling values.
    prompt: token ids the repetition penalty looks back at.
    operations: what works on the logits; by default what suits this installation.
    """

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...], operations: Rows | None = None) -> None:
        self._params = params
        self._rows = rows() if operations is None else operations
        self._history = History(params, prompt)
        self._penalised = np.empty(0, np.float32)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._random = np.random.Generator(np.random.PCG64(seed))

    def sample(self, logits: Floats) -> int:
        """Choose the next token from `logits` (float32 [vocabulary], left unchanged) and note it.

        Raises SamplingError when the row holds NaN, +inf or nothing but -inf.
        """
        token = self._best(logits)
        if self._history.active:
            logits = self._penalise(logits)
            token = self._best(logits)
        if not self._params.greedy:
            token = self._draw(Candidates(logits, rows=self._rows))
        self._history.append(token)
        return token

    def _best(self, logits: Floats) -> int:
        token, best = self._rows.best(logits)
        if not math.isfinite(best):
            raise SamplingError("the model returned logits that are not finite numbers")
        return token

    def _penalise(self, logits: Floats) -> Floats:
        if self._penalised.shape != logits.shape:  # kept: fresh memory would cost more than the copy
            self._penalised = np.empty_like(logits)
        np.copyto(self._penalised, logits)
        self._history.penalise(self._penalised, self._rows)
        return self._penalised

    def _draw(self, candidates: Candidates) -> int:
        params = self._params
        kept = min_p(top_p(top_k(candidates, params.top_k), params.top_p), params.min_p)
        return kept.draw(params.temperature, self._random.random())
