"""Operations on rows of logits in numpy: for installations without the native kernels, and what those are tested
against. `rows.Rows` says what each method does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlxcel.engine.constraint import Words
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Floats, Ids
from mlxcel.engine.sampling.chain import Step, choose
from mlxcel.engine.sampling.logprobs import Logprobs, logprobs


class NumpyRows:
    """Implements `rows.Rows`."""

    def chain(self, params: SamplingParams) -> SamplingParams:
        return params

    def choose(
        self,
        logits: Floats,
        chains: Sequence[SamplingParams],
        steps: Sequence[Step],
        masks: Sequence[Words | None] = (),
    ) -> list[tuple[int, float]]:
        rows = [_allowed(row, words) for row, words in zip(logits, masks, strict=True)] if masks else logits
        return [choose(row, chain, step) for row, chain, step in zip(rows, chains, steps, strict=True)]

    def logprobs(self, logits: Floats, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
        return [logprobs(logits[index], token, count) for index, token, count in wanted]

    def add_at(self, row: Floats, tokens: Ids, values: Floats) -> None:
        row[tokens] += values

    def penalise(
        self, row: Floats, tokens: Ids, counts: Floats, repetition: float, frequency: float, presence: float
    ) -> None:
        seen = row[tokens]
        factor = np.float32(repetition)
        with np.errstate(over="ignore"):  # as silent as the native kernels; what comes out is looked at later
            seen = np.where(seen > 0, seen / factor, seen * factor)
            row[tokens] = seen - (counts * np.float32(frequency) + np.float32(presence))


def _allowed(row: Floats, words: Words | None) -> Floats:
    """The row with -inf for what may not come."""
    if words is None:
        return row
    bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=row.shape[0])
    return np.where(bits, row, np.float32(-np.inf))
