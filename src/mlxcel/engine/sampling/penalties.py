"""Repetition, frequency and presence penalties.

Repetition: Keskar et al. 2019, "CTRL". Frequency and presence: as the OpenAI API defines them.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

import numpy as np

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Floats, Ids
from mlxcel.engine.sampling.edits import Edits


class TokenCounts:
    """How often each token of a changing collection occurs, as arrays that need no rebuilding between two rows."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._tokens: Ids = np.empty(16, np.int64)
        self._counts: Floats = np.empty(16, np.float32)

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def tokens(self) -> Ids:
        """The tokens, in no particular order."""
        return self._tokens[: len(self._slots)]

    @property
    def counts(self) -> Floats:
        """How often each of `tokens` occurs: 1 or more."""
        return self._counts[: len(self._slots)]

    def add(self, token: int) -> None:
        """Count one more occurrence."""
        slot = self._slots.get(token)
        if slot is not None:
            self._counts[slot] += 1
            return
        slot = len(self._slots)
        if slot == self._tokens.shape[0]:
            self._tokens = np.concatenate((self._tokens, self._tokens))
            self._counts = np.concatenate((self._counts, self._counts))
        self._slots[token] = slot
        self._tokens[slot] = token
        self._counts[slot] = 1

    def remove(self, token: int) -> None:
        """Count one occurrence less."""
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] > 0:
            return
        last = len(self._slots) - 1
        moved = int(self._tokens[last])  # the last one fills the gap
        self._tokens[slot] = moved
        self._counts[slot] = self._counts[last]
        self._slots[moved] = slot
        del self._slots[token]


class History:
    """The tokens one sequence has seen, kept for its penalties.

    Repetition looks at the last `repetition_context_size` tokens, prompt included; frequency and presence count the
    generated tokens only.
    """

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...]) -> None:
        self._params = params
        self._window = params.repetition_context_size if params.repetition_penalty != 1.0 else 0
        self._counted = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        self._order: deque[int] = deque()
        self._recent = TokenCounts()
        self._generated = TokenCounts()
        if self._window:
            for token in islice(prompt, max(0, len(prompt) - self._window) if self._window > 0 else 0, None):
                self._note(token)

    @property
    def enabled(self) -> bool:
        """False when no penalty is on."""
        return self._counted or self._window != 0

    def append(self, token: int) -> None:
        """Note a generated token."""
        if self._counted:
            self._generated.add(token)
        if self._window:
            self._note(token)

    def apply(self, edits: Edits) -> None:
        """Change a row."""
        params = self._params
        if self._recent:
            recent = self._recent
            edits.penalise(recent.tokens, recent.counts, params.repetition_penalty, 0.0, 0.0)
        if self._generated:
            counted = self._generated
            frequency, presence = params.frequency_penalty, params.presence_penalty
            edits.penalise(counted.tokens, counted.counts, 1.0, frequency, presence)

    def _note(self, token: int) -> None:
        self._recent.add(token)
        if self._window > 0:
            self._order.append(token)
            if len(self._order) > self._window:
                self._recent.remove(self._order.popleft())
