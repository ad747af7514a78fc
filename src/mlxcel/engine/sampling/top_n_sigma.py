"""Top-n-sigma: keep logits within so many standard deviations of the largest.

Tang et al. 2024, "Top-nσ: Not All Logits Are You Need".
"""

from __future__ import annotations

import math

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates

_LANES = 16


def top_n_sigma(candidates: Candidates, n: float) -> Candidates:
    """Keep logits that are at most `n` standard deviations of all finite ones below the largest; 0 keeps all."""
    if n <= 0.0:
        return candidates
    with np.errstate(over="ignore"):
        distances = candidates.logits.max() - candidates.logits
    finite = np.isfinite(distances)
    # As the native kernels add: every sixteenth element into one sum, then these sums from the first to the last.
    lanes = np.zeros((-(-distances.shape[0] // _LANES), _LANES), np.float64)
    lanes.flat[: distances.shape[0]] = np.where(finite, distances, np.float32(0.0))
    count = int(np.count_nonzero(finite))
    mean = _total(lanes) / count
    deviation = math.sqrt(max(_total(lanes * lanes) / count - mean * mean, 0.0))
    return candidates.at_least(candidates.peak - n * deviation)


def _total(lanes: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> float:
    return float(np.add.accumulate(np.add.accumulate(lanes, axis=0)[-1])[-1])
