"""What works on the logits of a step: the native kernels, or numpy where an installation has none.

The definitions are the same in both, to the last bit: a row and a seed give the same token with and without the native
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mlxcel.engine.constraint import Words
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Floats, Ids
from mlxcel.engine.sampling.chain import Step
from mlxcel.engine.sampling.logprobs import Logprobs
from mlxcel.engine.sampling.rows_numpy import NumpyRows

MAX_THREADS = 8
"""Threads that are made to share the rows of a step; more would wait for each other longer than they work."""


class Rows(Protocol):
    """Operations on rows, float32 [n], alone or together, [rows, n] in one piece of memory."""

    def chain(self, params: SamplingParams) -> Any:
        """How one sequence is sampled, in the form that `choose` takes."""
        ...

    def choose(
        self, logits: Floats, chains: Sequence[Any], steps: Sequence[Step], masks: Sequence[Words | None] = ()
    ) -> list[tuple[int, float]]:
        """Token and share for each row of `logits`, as `mlxcel.engine.sampling.chain.choose` defines them.

        masks: for each row the tokens that may come, or None; empty: no row has one. The logits stay as they are.
        """
        ...

    def logprobs(self, logits: Floats, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
        """For each row, token and number wanted: the log probability of the token, and so many of the likeliest tokens
        with theirs, best first."""
        ...

    def add_at(self, row: Floats, tokens: Ids, values: Floats) -> None:
        """Add `values` to the logits of `tokens`, each listed once, in place."""
        ...

    def penalise(
        self, row: Floats, tokens: Ids, counts: Floats, repetition: float, frequency: float, presence: float
    ) -> None:
        """Lower the logits of `tokens`, each listed once with how often it was seen, in place.

        Positive logits are divided by `repetition` and others multiplied; then `frequency` a count and `presence` go.
        """
        ...


class NativeRows:
    """Implements `Rows`. The rows of a step are shared out to threads.

    module: the native extension.
    threads: how many of its own, or a native decoder that lends its threads between two steps.
    """

    def __init__(self, module: Any, threads: Any) -> None:
        rows = module.Rows(threads)
        self._chain = module.Chain
        self.choose = rows.choose
        self.logprobs = rows.logprobs
        self.add_at = rows.add_at
        self.penalise = rows.penalise

    def chain(self, params: SamplingParams) -> Any:
        """How one sequence is sampled."""
        return self._chain(
            greedy=params.greedy,
            temperature=params.temperature,
            top_n_sigma=params.top_n_sigma,
            p_less=params.p_less,
            typical_p=params.typical_p,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            min_keep=params.min_keep,
            xtc_threshold=params.xtc_threshold,
            dynatemp_range=params.dynatemp_range,
            dynatemp_exponent=params.dynatemp_exponent,
            mirostat=params.mirostat,
            adaptive=params.adaptive,
        )


def make_rows(threads: int = 0) -> Rows:
    """The native kernels where the installation has them and MLXCEL_KERNELS names some that can run; else numpy.

    threads: that may work on a step; 0: one for each processor.
    """
    # Not at the top: the package of the kernels imports MLX, which a server does while it already answers.
    from mlxcel.kernels import native

    try:
        native.instruction_set()
    except (native.NativeUnavailable, ValueError):  # loading a model says why
        return NumpyRows()
    return NativeRows(native.module(), min(threads or native.default_threads(), MAX_THREADS))
