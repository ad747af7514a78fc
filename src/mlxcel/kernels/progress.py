"""How far the packing of weights is, in words and not too often."""

from __future__ import annotations

import time
from collections.abc import Callable

PROGRESS_SECONDS = 3.0
"""Between two reports."""

Report = Callable[[str], None]


class PackingProgress:
    """Tells `report`, if there is one, every few seconds how many of `total` layers are packed."""

    def __init__(self, report: Report | None, total: int) -> None:
        self._report = report
        self._total = total
        self._reported = time.monotonic()

    def packed(self, count: int) -> None:
        """`count` layers are packed now."""
        if self._report is not None and time.monotonic() - self._reported >= PROGRESS_SECONDS:
            self._reported = time.monotonic()
            self._report(f"packing weights: layer {count} of {self._total}")
