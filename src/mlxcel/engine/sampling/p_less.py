"""p-less: keep tokens that are at least as likely as a guess drawn from the distribution is to be right.

Tan et al. 2025, "p-less Sampling: A Robust Hyperparameter-Free Approach for LLM Decoding".
"""

from __future__ import annotations

import math

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.weights import moments


def p_less(candidates: Candidates, temperature: float) -> Candidates:
    """Keep tokens whose probability p at `temperature` is at least the sum of all p^2. The best one always is."""
    sums = moments(candidates.logits, temperature)
    return candidates.at_least(candidates.peak + temperature * math.log(sums.squares / sums.mass))
