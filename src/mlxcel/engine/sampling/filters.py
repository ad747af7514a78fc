"""Truncation filters: each takes the surviving candidates and returns fewer. The best candidate always survives."""

from __future__ import annotations

import math

from mlxcel.engine.sampling.candidates import Candidates


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the `k` largest logits; 0 or less, or at least as many as there are, keeps all.

    Fan et al. 2018, "Hierarchical Neural Story Generation".
    """
    if k <= 0 or k >= candidates.logits.shape[0]:
        return candidates
    return candidates.at(candidates.rows.top_k(candidates.logits, k))


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the smallest set of most likely candidates whose probability reaches `p`; 1 or more keeps all.

    Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
    """
    if p >= 1.0:
        return candidates
    return candidates.at(candidates.rows.nucleus(candidates.logits, p))


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keep candidates at least `p` times as likely as the best one; 0 keeps all.

    Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
    """
    if p <= 0.0:
        return candidates
    _, best = candidates.rows.best(candidates.logits)
    return candidates.at(candidates.rows.at_least(candidates.logits, best + math.log(min(p, 1.0))))
