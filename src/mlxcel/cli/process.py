"""The process around a command: standard streams, signals before there is a loop for them, and the way out."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Generator
from types import FrameType
from typing import NoReturn

from mlxcel import heap

_INTERRUPTED = 130  # 128 + SIGINT, by the custom of shells
_TERMINATED = 143


def run_process(main: Callable[[], int]) -> NoReturn:
    """Run a command as this process's whole work and leave with its exit code.

    The process ends without the interpreter's own tidying up: model threads may still be letting go of thread-local
    memory that belongs to C++, and meeting a half-finished interpreter they would abort the process.
    """
    _open_closed_streams()
    heap.share()
    # Until something better is set up, a signal just ends the process: an exception in the middle of an import could
    # be swallowed there, or abort.
    signal.signal(signal.SIGINT, _leave)
    try:
        code = main()
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else 1
    except KeyboardInterrupt:
        code = _INTERRUPTED
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """While the body runs, SIGINT raises KeyboardInterrupt and SIGTERM SystemExit, so that it can tidy up."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    os._exit(_INTERRUPTED)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(_TERMINATED)


def _open_closed_streams() -> None:
    """A stream that was closed by the caller is None, which hardly any code expects."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
