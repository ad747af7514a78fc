"""Min-p: keep tokens by how likely they are beside the best one.

Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
"""

from __future__ import annotations

import math

from mlxcel.engine.sampling.candidates import Candidates


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keep candidates at least `p` times as likely as the best one; 0 keeps all."""
    if p <= 0.0:
        return candidates
    return candidates.at_least(candidates.peak + math.log(min(p, 1.0)))
