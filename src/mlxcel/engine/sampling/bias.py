"""Token bias: fixed amounts added to the logits of some tokens.

The request's `logit_bias`, and -inf for every token that must not come.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.edits import Edits


class Bias:
    """The bias of one sequence, put together once.

    ends: tokens that end a text; with `ignore_eos` they never come.
    """

    def __init__(self, params: SamplingParams, ends: Collection[int]) -> None:
        values = dict(params.logit_bias)
        if params.ignore_eos:
            values |= dict.fromkeys(ends, -math.inf)
        self._tokens = np.array(sorted(values), np.int64)
        self._values = np.array([values[token] for token in sorted(values)], np.float32)

    @property
    def enabled(self) -> bool:
        """False when there is nothing to add."""
        return self._tokens.shape[0] > 0

    def apply(self, edits: Edits) -> None:
        """Change a row."""
        # A tokenizer may know more tokens than the model.
        known = int(np.count_nonzero(self._tokens < edits.row.shape[0]))
        edits.add(self._tokens[:known], self._values[:known])
