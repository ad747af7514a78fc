"""XTC, "exclude top choices": now and then take away all likely tokens but the least likely of them.

Weidmann 2024, text-generation-webui, pull request 6335.
"""

from __future__ import annotations

import math

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates, single
from mlxcel.engine.sampling.weights import mass


def exclude_top_choices(candidates: Candidates, threshold: float, min_keep: int = 0) -> Candidates:
    """Of the candidates more likely than `threshold`, keep the least likely one (of equals the last); fewer than two
    stay as they are, and all when fewer than `min_keep` would be left."""
    logits = candidates.logits
    least_mass = threshold * mass(logits, 1.0)
    limit = candidates.peak + math.log(least_mass) if least_mass > 0.0 else -math.inf
    top = np.flatnonzero(logits > single(limit))
    if top.shape[0] < 2 or np.isfinite(logits).sum() - (top.shape[0] - 1) < min_keep:
        return candidates
    least = top.shape[0] - 1 - int(logits[top][::-1].argmin())
    return candidates.without(np.delete(top, least))
