"""The order of the stages, in numpy: from a row of logits to a token.

Truncation looks at the untempered distribution, but for p-less, and temperature is applied once, at the end. A stage
that is off costs nothing. Bias and penalties have been applied to the row before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.adaptive_p import near
from mlxcel.engine.sampling.candidates import Candidates, Floats
from mlxcel.engine.sampling.draw import draw
from mlxcel.engine.sampling.min_keep import at_least
from mlxcel.engine.sampling.min_p import min_p
from mlxcel.engine.sampling.mirostat import mirostat
from mlxcel.engine.sampling.p_less import p_less
from mlxcel.engine.sampling.temperature import dynamic_temperature
from mlxcel.engine.sampling.top_k import top_k
from mlxcel.engine.sampling.top_n_sigma import top_n_sigma
from mlxcel.engine.sampling.top_p import top_p
from mlxcel.engine.sampling.typical_p import typical_p
from mlxcel.engine.sampling.weights import weights
from mlxcel.engine.sampling.xtc import exclude_top_choices

NO_TOKEN = -1
"""What is chosen from a row that holds NaN, +inf or nothing but -inf."""


class Step(NamedTuple):
    """What is decided anew for each token."""

    uniform: float
    """Random, in [0, 1)."""
    exclude_top: bool
    """XTC acts."""
    feedback: float
    """Mirostat: the surprise that the token may have; adaptive-p: the probability to aim at."""


def choose(logits: Floats, params: SamplingParams, step: Step) -> tuple[int, float]:
    """A token, and its probability among those it was drawn from (for adaptive-p, the one before the change).

    logits: float32 [vocabulary], with bias and penalties. Among equal logits the lower token ranks first.
    """
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        return NO_TOKEN, 0.0
    if params.greedy:
        return best, 1.0
    candidates, temperature = Candidates(logits), params.temperature
    if params.mirostat:
        candidates = mirostat(candidates, params.mirostat, temperature, step.feedback)
    else:
        candidates = _truncated(candidates, params, step)
        temperature = dynamic_temperature(candidates, temperature, params.dynatemp_range, params.dynatemp_exponent)
    weighed = weights(candidates.logits, temperature)
    total = float(weighed.sum(dtype="float64"))
    if params.adaptive:
        position = draw(weights(near(candidates, weighed, total, step.feedback).logits, 1.0), step.uniform)
    else:
        position = draw(weighed, step.uniform)
    return candidates.token(position), float(weighed[position]) / total


def _truncated(candidates: Candidates, params: SamplingParams, step: Step) -> Candidates:
    candidates = top_n_sigma(candidates, params.top_n_sigma)
    if params.p_less:
        candidates = p_less(candidates, params.temperature)
    least = params.min_keep
    candidates = typical_p(candidates, params.typical_p, least)
    candidates = top_k(candidates, params.top_k)
    candidates = at_least(least, top_p(candidates, params.top_p), candidates)
    candidates = at_least(least, min_p(candidates, params.min_p), candidates)
    return exclude_top_choices(candidates, params.xtc_threshold, least) if step.exclude_top else candidates
