"""Min-keep: truncation by probability leaves so many tokens at least.

As in llama.cpp: it holds for typical-p, top-p, min-p and XTC, each for itself.
"""

from __future__ import annotations

from mlxcel.engine.sampling.candidates import Candidates
from mlxcel.engine.sampling.top_k import top_k


def at_least(count: int, kept: Candidates, before: Candidates) -> Candidates:
    """`kept`, or when those are fewer than `count`, so many most likely ones of `before`; 0 or 1 asks for nothing."""
    return kept if kept.logits.shape[0] >= count else top_k(before, count)
