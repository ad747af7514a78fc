"""Truncation filters: each takes the surviving candidates and returns fewer. The best candidate always survives."""

from __future__ import annotations

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the `k` largest logits; 0 or less, or at least as many as there are, keeps all.

    Fan et al. 2018, "Hierarchical Neural Story Generation".
    """
    n = candidates.logits.shape[0]
    if k <= 0 or k >= n:
        return candidates
    if candidates.ordered:
        return candidates.first(k)
    kept = np.argpartition(candidates.logits, n - k)[n - k :]
    kept.sort()  # by position, so that equal logits are ordered by token id below
    ids = kept if candidates.ids is None else candidates.ids[kept]
    return Candidates(candidates.logits[kept], ids).sort()


def top_p(candidates: Candidates, p: float) -> Candidates:
    """Keep the smallest set of most likely candidates whose probability reaches `p`; 1 or more keeps all.

    Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration".
    """
    if p >= 1.0:
        return candidates
    ordered = candidates.sort()
    cumulative = np.cumsum(ordered.probabilities())
    crossing = int(np.searchsorted(cumulative, p, side="left"))
    return ordered.first(min(crossing + 1, cumulative.shape[0]))


def min_p(candidates: Candidates, p: float) -> Candidates:
    """Keep candidates at least `p` times as likely as the best one; 0 keeps all.

    Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
    """
    if p <= 0.0:
        return candidates
    threshold = float(candidates.logits.max()) + float(np.log(min(p, 1.0)))
    return candidates.where(candidates.logits >= threshold)
