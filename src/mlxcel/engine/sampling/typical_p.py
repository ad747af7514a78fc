"""Locally typical sampling: keep tokens about as surprising as the distribution is on average.

Meister et al. 2022, "Locally Typical Sampling".
"""

from __future__ import annotations

import math

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates, single
from mlxcel.engine.sampling.weights import moments, weights


def typical_p(candidates: Candidates, p: float, min_keep: int = 0) -> Candidates:
    """Rank tokens by how far their surprise -log(probability) is from the entropy, and keep the first that together
    have the probability `p`, and no fewer than `min_keep`; 1 or more keeps all. The best token may go."""
    if p >= 1.0:
        return candidates
    logits = candidates.logits
    sums = moments(logits, 1.0)
    # A token of this logit would be as surprising as the entropy says, and surprise is linear in the logit.
    centre = single(candidates.peak - sums.exponents / sums.mass * math.log(2.0))
    with np.errstate(over="ignore"):
        ranked = np.argsort(np.abs(logits - centre), kind="stable")
    cumulative = np.cumsum(weights(logits, 1.0)[ranked], dtype=np.float64)
    crossing = int(np.searchsorted(cumulative, p * sums.mass, side="left"))
    return candidates.at(np.sort(ranked[: max(crossing + 1, min_keep)]))
