"""Operations on rows of logits in numpy: for installations without the native kernels, and what those are tested
against. `rows.Rows` says what each method does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Floats, Ids
from mlxcel.engine.sampling.chain import Step, choose
from mlxcel.engine.sampling.logprobs import Logprobs, logprobs


class NumpyRows:
    """Implements `rows.Rows`."""

    def chain(self, params: SamplingParams) -> SamplingParams:
        return params

    def choose(
        self, logits: Floats, chains: Sequence[SamplingParams], steps: Sequence[Step]
    ) -> list[tuple[int, float]]:
        return [choose(row, chain, step) for row, chain, step in zip(logits, chains, steps, strict=True)]

    def logprobs(self, logits: Floats, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
        return [logprobs(logits[index], token, count) for index, token, count in wanted]

    def mask(self, row: Floats, words: npt.NDArray[np.uint32], out: Floats) -> None:
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little", count=row.shape[0])
        np.copyto(out, np.where(allowed, row, np.float32(-np.inf)))

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
