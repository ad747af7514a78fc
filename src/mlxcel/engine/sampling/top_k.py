"""Top-k: keep the most likely tokens by their number.

Fan et al. 2018, "Hierarchical Neural Story Generation".
"""

from __future__ import annotations

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates, Floats, Ids


def top_k(candidates: Candidates, k: int) -> Candidates:
    """Keep the `k` largest logits; 0 or less, or at least as many as there are, keeps all."""
    if k <= 0 or k >= candidates.logits.shape[0]:
        return candidates
    return candidates.at(largest(candidates.logits, k))


def largest(logits: Floats, k: int) -> Ids:
    """Rising positions of the `k` largest; among equals the first."""
    n = logits.shape[0]
    k = min(max(k, 0), n)
    if k in (0, n):
        return np.arange(k)
    least = np.partition(logits, n - k)[n - k]
    larger = np.flatnonzero(logits > least)
    ties = np.flatnonzero(logits == least)[: k - larger.shape[0]]
    return np.sort(np.concatenate((larger, ties)))
