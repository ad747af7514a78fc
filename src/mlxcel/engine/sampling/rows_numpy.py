"""Operations on a row of logits in numpy: for installations without the native kernels, and what those are tested
against. `rows.Rows` says what each method does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

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


class NumpyRows:
    """Implements `rows.Rows`."""

    def best(self, row: Floats) -> tuple[int, float]:
        position = int(row.argmax())
        return position, float(row[position])

    def top_k(self, row: Floats, k: int) -> Ids:
        n = row.shape[0]
        k = min(max(k, 0), n)
        if k in (0, n):
            return np.arange(k)
        least = np.partition(row, n - k)[n - k]
        larger = np.flatnonzero(row > least)
        ties = np.flatnonzero(row == least)[: k - larger.shape[0]]
        kept = np.concatenate((larger, ties))
        kept.sort()
        return kept

    def at_least(self, row: Floats, threshold: float) -> Ids:
        return np.flatnonzero(row >= np.float32(threshold))

    def nucleus(self, row: Floats, p: float) -> Ids:
        weights = self.weights(row, 1.0)
        live = np.flatnonzero(weights)
        ranked = live[np.argsort(-row[live], kind="stable")]
        cumulative = np.cumsum(weights[ranked], dtype=np.float64)
        crossing = int(np.searchsorted(cumulative, p * float(cumulative[-1]), side="left"))
        kept = ranked[: crossing + 1]
        kept.sort()
        return kept

    def weights(self, row: Floats, temperature: float) -> Floats:
        # Clipped so that neither 0 nor -inf can become NaN.
        scale = np.float32(min(max(1.4426950408889634 / temperature, 1.2e-38), 3.4e38))
        with np.errstate(over="ignore"):  # far below the best: -inf, and so no weight, is right
            exponent = np.maximum((row - row.max()) * scale, np.float32(-37.0))
        whole = np.rint(exponent)
        fraction = exponent - whole
        power = np.full_like(fraction, _COEFFICIENTS[0])
        for coefficient in _COEFFICIENTS[1:]:
            power *= fraction
            power += coefficient
        power = np.ldexp(power, whole.astype(np.int32))
        unit = np.float32(2.0**-12)  # a sum with it has no bits below 2^-35
        power += unit
        power -= unit
        return power

    def mass(self, row: Floats, temperature: float) -> tuple[float, float]:
        return float(row.max()), float(self.weights(row, temperature).sum(dtype=np.float64))

    def draw(self, row: Floats, temperature: float, uniform: float) -> int:
        cumulative = np.cumsum(self.weights(row, temperature), dtype=np.float64)
        position = int(np.searchsorted(cumulative, uniform * float(cumulative[-1]), side="right"))
        return min(position, cumulative.shape[0] - 1)

    def mask(self, row: Floats, words: Words, out: Floats) -> None:
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little", count=row.shape[0])
        np.copyto(out, np.where(allowed, row, np.float32(-np.inf)))

    def add_at(self, row: Floats, tokens: Ids, values: Floats) -> None:
        row[tokens] += values

    def penalise(
        self, row: Floats, tokens: Ids, counts: Floats, repetition: float, frequency: float, presence: float
    ) -> None:
        seen = row[tokens]
        factor = np.float32(repetition)
        with np.errstate(over="ignore"):  # as silent as the native kernels; the sampler looks at what comes out
            seen = np.where(seen > 0, seen / factor, seen * factor)
            row[tokens] = seen - (counts * np.float32(frequency) + np.float32(presence))
