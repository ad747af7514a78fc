"""Mirostat: truncation under feedback, so that the text is as surprising as asked for. Versions 1 and 2.

Basu et al. 2021, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity". As in llama.cpp, the
surprise that is fed back is the one among the tokens that were left.
"""

from __future__ import annotations

import math

import numpy as np

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.top_k import largest, top_k
from mlxcel.engine.sampling.weights import mass

_RANKS = 100
"""Most likely tokens from which version 1 estimates how fast probability falls with rank."""


class Mirostat:
    """Feedback of one sequence.

    target: surprise to aim at, in bits. rate: how fast errors are corrected.
    """

    def __init__(self, target: float, rate: float) -> None:
        self._target = target
        self._rate = rate
        self.value = 2.0 * target
        """The surprise that the next token may have, in bits."""

    def observe(self, share: float) -> None:
        """Note the probability of the token that was drawn, among those it was drawn from."""
        self.value -= self._rate * (-math.log2(share) - self._target)


def mirostat(candidates: Candidates, version: int, temperature: float, limit: float) -> Candidates:
    """Keep tokens whose surprise at `temperature` is at most `limit` bits, but always one: version 2 by their
    probabilities, version 1 as many as a Zipf distribution fitted to the row would have."""
    if version == 1:
        return top_k(candidates, _zipf_size(candidates, temperature, limit))
    missing = limit - math.log2(mass(candidates.logits, temperature))
    return candidates.at_least(candidates.peak - max(0.0, temperature * math.log(2.0) * missing))


def _zipf_size(candidates: Candidates, temperature: float, limit: float) -> int:
    logits = candidates.logits
    n = logits.shape[0]
    top = logits[largest(logits, _RANKS)]
    ranked = [float(logit) for logit in sorted(top[top > -np.inf], reverse=True)]
    products = squares = 0.0
    for rank in range(len(ranked) - 1):
        t = math.log((rank + 2.0) / (rank + 1.0))
        products += t * ((ranked[rank] - ranked[rank + 1]) / temperature)
        squares += t * t
    slope = products / squares if squares > 0.0 else 0.0
    if slope <= 0.0:
        return n
    excess, bits = slope - 1.0, math.log2(n)
    scale = 1.0 / math.log(n) if abs(excess) < 1e-9 else excess / (1.0 - 2.0 ** (-excess * bits))
    size = (math.log2(scale) + limit) / slope
    if not math.isfinite(size):
        return 1
    return n if size >= bits else max(1, int(2.0**size))
