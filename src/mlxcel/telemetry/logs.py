"""Where log lines go, how they look, and what must never be in them."""

from __future__ import annotations

import logging
import os
import re
import stat
import sys
import time
from collections.abc import Collection
from io import TextIOWrapper
from typing import IO

from mlxcel.config import LogConfig

REDACTED = "[redacted]"

_CREDENTIAL = re.compile(r"(?i:(bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}|\bhf_[A-Za-z0-9]{16,}")
_COLORS = {logging.ERROR: "31", logging.WARNING: "33", logging.DEBUG: "2"}
_QUIET_BELOW_DEBUG = ("uvicorn", "asyncio", "httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub", "filelock")


class LogFileError(Exception):
    """The log file cannot be used. The message is one clear line."""


def setup_logging(config: LogConfig, *, secrets: Collection[str] = (), stream: IO[str] | None = None) -> None:
    """Send the log lines of the whole process to `stream` (standard output by default) and to the log file.

    Every occurrence of one of `secrets`, and of what looks like a credential, is written as `[redacted]`.
    Replaces what an earlier call set up. Raises LogFileError when the log file cannot be used.
    """
    # A log nobody reads any more is no reason to print traces, which would bypass the redaction.
    logging.raiseExceptions = False
    handlers: list[logging.Handler] = []
    if not config.disable:
        sink = stream or sys.stdout
        handlers.append(_handler(logging.StreamHandler(sink), config, secrets, _wants_color(config.colors, sink)))
        if config.file is not None:
            handlers.append(_handler(_PrivateFile(config.file), config, secrets, False))
    root = logging.getLogger()
    for old in root.handlers[:]:
        if isinstance(old.formatter, LineFormatter):
            root.removeHandler(old)
            old.close()
    # Without any handler, Python itself would print warnings to standard error.
    for handler in handlers or [_handler(logging.NullHandler(), config, secrets, False)]:
        root.addHandler(handler)
    level = level_of(config.verbosity)
    root.setLevel(level)
    for name in _QUIET_BELOW_DEBUG:
        logging.getLogger(name).setLevel(level if level <= logging.DEBUG else max(level, logging.WARNING))


def level_of(verbosity: int) -> int:
    """The `logging` level of a verbosity: 0-1 error, 2 warning, 3 info, 4 and more debug."""
    if verbosity <= 1:
        return logging.ERROR
    return {2: logging.WARNING, 3: logging.INFO}.get(verbosity, logging.DEBUG)


class LineFormatter(logging.Formatter):
    """One record as text: time, level, message, trace; credentials taken out of the finished text."""

    def __init__(self, config: LogConfig, secrets: Collection[str], *, colored: bool) -> None:
        super().__init__()
        self._timestamps = config.timestamps
        self._prefix = config.prefix
        self._colored = colored
        # Longest first, so that a secret that contains another one is taken out whole.
        self._secrets = sorted({secret for secret in secrets if secret}, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """The finished line; redaction comes last, so it covers message, arguments, traces and stacks alike."""
        text = self._redact(super().format(record))
        if self._prefix:
            text = f"{record.levelname[0]} {text}"
        if self._timestamps:
            text = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03} {text}"
        color = _COLORS.get(record.levelno) if self._colored else None
        return f"\x1b[{color}m{text}\x1b[0m" if color else text

    def _redact(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return _CREDENTIAL.sub(lambda match: f"{match[1]} {REDACTED}" if match[1] else REDACTED, text)


def _handler(handler: logging.Handler, config: LogConfig, secrets: Collection[str], colored: bool) -> logging.Handler:
    handler.setFormatter(LineFormatter(config, secrets, colored=colored))
    return handler


def _wants_color(choice: str, stream: IO[str]) -> bool:
    if choice == "auto":
        return stream.isatty() and not os.environ.get("NO_COLOR")
    return choice == "on"


class _PrivateFile(logging.FileHandler):
    """A file readable by its owner alone."""

    def _open(self) -> TextIOWrapper:
        return _open_private(self.baseFilename)


def _open_private(path: str) -> TextIOWrapper:
    """Open a log file for appending, readable by its owner alone. Raises LogFileError."""
    try:
        # No link is followed, so that nobody can aim the log at another file; no blocking on a pipe.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        reason = "it is a symbolic link" if os.path.islink(path) else (error.strerror or str(error))
        raise LogFileError(f"cannot write the log file {path}: {reason}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LogFileError(f"cannot write the log file {path}: it is not a regular file")
    try:
        os.fchmod(descriptor, 0o600)
    except OSError as error:
        os.close(descriptor)
        raise LogFileError(f"cannot make the log file {path} private: {error.strerror}") from error
    return open(descriptor, "a", encoding="utf-8", errors="backslashreplace")
