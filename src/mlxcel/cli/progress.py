"""Download progress on the terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import IO, TYPE_CHECKING, Any

from mlxcel.models.fetch import Progress, silent

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

_STEP = 0.25
_MEBIBYTE = 1 << 20


@contextlib.contextmanager
def shown_progress(stream: IO[str], environ: Mapping[str, str]) -> Generator[Progress]:
    """A Progress for the user: a bar on a terminal, a line now and then elsewhere, nothing when told to be quiet."""
    if environ.get("MLXCEL_NO_PROGRESS") or environ.get("CI", "").lower() in {"true", "1"}:
        yield silent
    elif stream.isatty() and not environ.get("NO_COLOR"):
        with _bars(stream) as progress:
            yield progress
    else:
        yield PlainProgress(stream)


class PlainProgress:
    """One line at the start of a download, at every quarter, and at its end."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._next: dict[str, float] = {}

    def __call__(self, label: str, done: int, total: int) -> None:
        """A Progress."""
        share = done / total if total else 0.0
        if share < self._next.get(label, 0.0):
            return
        self._next[label] = (share // _STEP + 1) * _STEP
        amount = f" {done // _MEBIBYTE} of {total // _MEBIBYTE} MiB" if total else ""
        print(f"{label}{amount}", file=self._stream, flush=True)


@contextlib.contextmanager
def _bars(stream: IO[str]) -> Generator[Progress]:
    """One bar for each label. Nothing is imported or drawn before there is something to show."""
    tasks: dict[str, Any] = {}
    bars: Bars | None = None
    with contextlib.ExitStack() as stack:

        def progress(label: str, done: int, total: int) -> None:
            nonlocal bars
            if bars is None:
                bars = stack.enter_context(_empty_bars(stream))
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total or None)
            bars.update(tasks[label], completed=done)

        yield progress


def _empty_bars(stream: IO[str]) -> Bars:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # Gone when it is done: what remains is the log.
    return Bars(*columns, console=Console(file=stream), transient=True)
