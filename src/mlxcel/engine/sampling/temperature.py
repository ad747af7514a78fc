"""Dynamic temperature: hotter where the model is unsure.

kalomaze 2023, koboldcpp.
"""

from __future__ import annotations

import math

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.weights import moments


def dynamic_temperature(candidates: Candidates, temperature: float, spread: float, exponent: float) -> float:
    """From `temperature - spread` (at least 0) where one candidate is certain to `temperature + spread` where all are
    equally likely: in between by their entropy, relative to the largest possible, to the power of `exponent`."""
    finite = int(np.count_nonzero(candidates.logits > -np.inf))
    if spread <= 0.0 or finite < 2:
        return temperature
    sums = moments(candidates.logits, 1.0)
    entropy = math.log2(sums.mass) + sums.exponents / sums.mass
    share = min(max(entropy / math.log2(finite), 0.0), 1.0)
    least, most = max(0.0, temperature - spread), temperature + spread
    return least + (most - least) * share**exponent
