"""Adaptive-p: prefer tokens near a target probability, under feedback, so that it is met on average.

llama.cpp, pull request 17927.
"""

from __future__ import annotations

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates, Floats

_NARROW = np.float32(1.0) / np.float32(0.3)
_PEAK = np.float32(5.0)
_SHARPNESS = np.float32(10.0)


class AdaptiveP:
    """Feedback of one sequence.

    target: probability to aim at. decay: weight of a token beside the one after it, below 1.
    """

    def __init__(self, target: float, decay: float) -> None:
        self._target = target
        self._decay = decay
        # As if every token so far had met the target.
        self._sum = target / (1.0 - decay)
        self._weight = 1.0 / (1.0 - decay)

    @property
    def value(self) -> float:
        """The probability that would make up for the tokens so far."""
        return min(max(2.0 * self._target - self._sum / self._weight, 0.0), 1.0)

    def observe(self, probability: float) -> None:
        """Note the probability that the token which was drawn had before the change."""
        self._sum = probability + self._decay * self._sum
        self._weight = 1.0 + self._decay * self._weight


def near(candidates: Candidates, weighed: Floats, total: float, aim: float) -> Candidates:
    """Other logits for the candidates: the closer their probability to `aim`, the larger. What weighs nothing is out.

    weighed: weights of the candidates, whose sum is `total`.
    """
    distance = np.abs(weighed * np.float32(1.0 / total) - np.float32(aim)) * _NARROW
    logits = _PEAK - _SHARPNESS * distance * distance / (np.float32(1.0) + distance)
    return Candidates(np.where(weighed > 0, logits, np.float32(-np.inf)), candidates.ids)
