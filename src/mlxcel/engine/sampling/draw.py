"""The draw."""

from __future__ import annotations

import numpy as np

from mlxcel.engine.sampling.candidates import Floats


def draw(weighed: Floats, uniform: float) -> int:
    """The first position up to which the weights exceed the share `uniform`, in [0, 1), of their sum."""
    cumulative = np.cumsum(weighed, dtype=np.float64)
    return int(np.searchsorted(cumulative, uniform * float(cumulative[-1]), side="right"))
