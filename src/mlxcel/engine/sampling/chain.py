"""The sampling chain of one sequence: penalties, top-k, top-p, min-p, temperature, draw.

Filters look at the untempered distribution and temperature is applied once, at the end. A stage that is off costs
nothing. Every sequence has a random generator of its own, so a seeded sequence does not depend on its neighbours.
"""

from __future__ import annotations

import secrets
from functools import partial

import numpy as np

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Candidates, Floats, SamplingError
from mlxcel.engine.sampling.filters import min_p, top_k, top_p
from mlxcel.engine.sampling.penalties import History


class Sampler:
    """Sampling state of one sequence.

    params: resolved sampling values.
    prompt: token ids the repetition penalty looks back at.
    """

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...]) -> None:
        self._params = params
        self._history = History(params, prompt)
        seed = secrets.randbits(64) if params.seed is None else params.seed
        self._random = np.random.Generator(np.random.PCG64(seed))
        self._filters = (
            partial(top_k, k=params.top_k),
            partial(top_p, p=params.top_p),
            partial(min_p, p=params.min_p),
        )

    def sample(self, logits: Floats) -> int:
        """Choose the next token from `logits` (float32 [vocabulary], left unchanged) and note it.

        Raises SamplingError when the row holds NaN, +inf or nothing but -inf.
        """
        if not np.isfinite(logits.max()):  # NaN is carried through max
            raise SamplingError("the model returned logits that are not finite numbers")
        if self._history.active:
            logits = logits.copy()
            self._history.penalise(logits)
        token = int(logits.argmax()) if self._params.greedy else self._draw(Candidates(logits))
        self._history.append(token)
        return token

    def _draw(self, candidates: Candidates) -> int:
        for keep in self._filters:
            candidates = keep(candidates)
        cumulative = np.cumsum(candidates.probabilities(self._params.temperature))
        # Inverse of the cumulative distribution: one uniform number a token, whatever the filters left.
        point = self._random.random() * float(cumulative[-1])
        position = int(np.searchsorted(cumulative, point, side="right"))
        position = min(position, cumulative.shape[0] - 1)
        return position if candidates.ids is None else int(candidates.ids[position])
