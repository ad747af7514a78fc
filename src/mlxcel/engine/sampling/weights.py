"""Probabilities of a row up to a common factor, defined to the last bit.

A logit's weight is 2^(log2(e) (logit - largest) / temperature), in single precision and rounded to a multiple of
2^-35. So sums of weights in double precision are exact, up to 2^18, in whatever order they are taken, and a row and a
seed give the same token with and without the native kernels. A token that is 2^36 times less likely than the best one
weighs nothing and is never drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mlxcel.engine.sampling.candidates import Floats

_COEFFICIENTS = tuple(
    np.float32(c)
    for c in (
        0.001326472731307149,
        0.009671512991189957,
        0.05550733581185341,
        0.24022242426872253,
        0.6931470036506653,
        1.0,
    )
)
"""2^f for f in [-1/2, 1/2], highest power first."""

_UNIT = np.float32(2.0**-12)
"""A sum with it, up to 1, has no bits below 2^-35."""


class Moments(NamedTuple):
    """Sums over the weights w of a row."""

    mass: float
    """Of w."""
    squares: float
    """Of w^2."""
    exponents: float
    """Of w times the powers of two by which the token is less likely than the best one."""


def weights(logits: Floats, temperature: float) -> Floats:
    """The weight of each logit, float32 [n]. The largest logit is finite."""
    return _weights(_exponents(logits, temperature))


def mass(logits: Floats, temperature: float) -> float:
    """The sum of the weights."""
    return _total(weights(logits, temperature))


def moments(logits: Floats, temperature: float) -> Moments:
    """The sums over the weights."""
    exponents = _exponents(logits, temperature)
    w = _weights(exponents)
    return Moments(_total(w), _total(_rounded(w * w)), _total(_rounded(w * -exponents)))


def _exponents(logits: Floats, temperature: float) -> Floats:
    # Clipped so that neither 0 nor -inf can become NaN.
    scale = (
        np.float32(min(max(1.4426950408889634 / temperature, 1.2e-38), 3.4e38)) if temperature else np.float32(3.4e38)
    )
    with np.errstate(over="ignore"):  # far below the best: -inf, and so no weight, is right
        return np.maximum((logits - logits.max()) * scale, np.float32(-37.0))


def _weights(exponents: Floats) -> Floats:
    whole = np.rint(exponents)
    fraction = exponents - whole
    power = np.full_like(fraction, _COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        power *= fraction
        power += coefficient
    return _rounded(np.ldexp(power, whole.astype(np.int32)))


def _rounded(values: Floats) -> Floats:
    return (values + _UNIT) - _UNIT


def _total(values: Floats) -> float:
    return float(values.sum(dtype=np.float64))
