"""Top-p, or nucleus sampling: keep the most likely tokens by their probability.

Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
"""

from __future__ import annotations

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.weights import weights


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the smallest set of most likely candidates whose probability reaches `p`; 1 or more keeps all."""
    if p >= 1.0:
        return candidates
    weighed = weights(candidates.logits, 1.0)
    live = np.flatnonzero(weighed)
    ranked = live[np.argsort(-candidates.logits[live], kind="stable")]
    cumulative = np.cumsum(weighed[ranked], dtype=np.float64)
    crossing = int(np.searchsorted(cumulative, p * float(cumulative[-1]), side="left"))
    return candidates.at(np.sort(ranked[: crossing + 1]))
