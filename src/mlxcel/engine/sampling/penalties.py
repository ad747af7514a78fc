"""Repetition, frequency and presence penalties.

Repetition: Keskar et al. 2019, "CTRL". Frequency and presence: as the OpenAI API defines them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Floats


class History:
    """The tokens one sequence has seen, kept for its penalties.

    Repetition looks at the last `repetition_context_size` tokens, prompt included; frequency and presence count the
    generated tokens only.
    """

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...]) -> None:
        self._params = params
        window = params.repetition_context_size if params.repetition_penalty != 1.0 else 0
        self._window = window
        self._recent: list[int] = []
        if window:
            self._recent += prompt if window < 0 else prompt[-window:]
        self._counts: Counter[int] = Counter()

    @property
    def active(self) -> bool:
        """False when no penalty can change a logit, so that the row need not be copied."""
        counted = self._params.frequency_penalty != 0.0 or self._params.presence_penalty != 0.0
        return self._window != 0 or (counted and bool(self._counts))

    def append(self, token: int) -> None:
        """Note a generated token."""
        self._counts[token] += 1
        if self._window:
            self._recent.append(token)
            if 0 < self._window < len(self._recent):
                del self._recent[0]

    def penalise(self, logits: Floats) -> None:
        """Change `logits` (float32 [vocabulary]) in place."""
        params = self._params
        if self._recent:
            ids = np.unique(np.asarray(self._recent, dtype=np.int64))
            seen = logits[ids]
            factor = np.float32(params.repetition_penalty)
            logits[ids] = np.where(seen > 0, seen / factor, seen * factor)
        if self._counts and (params.frequency_penalty or params.presence_penalty):
            ids = np.fromiter(self._counts.keys(), dtype=np.int64)
            counts = np.fromiter(self._counts.values(), dtype=np.float32)
            logits[ids] -= counts * np.float32(params.frequency_penalty) + np.float32(params.presence_penalty)
