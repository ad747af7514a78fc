"""The real server as a child process on a free port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

START_TIMEOUT = 120.0


@dataclass
class ServerProcess:
    """A running `mlxcel-server`. `output` grows with what it prints."""

    process: subprocess.Popen[str]
    output: list[str] = field(default_factory=list)
    url: str = ""

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(60)

    def health(self) -> dict[str, object]:
        """The body of `/health`, whatever the status."""
        return httpx.get(f"{self.url}/health", timeout=30).json()


@contextmanager
def server(*arguments: str | Path, environment: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Start a server with these arguments and port 0, and wait until its model is ready."""
    command = [Path(sys.executable).parent / "mlxcel-server", "--port", "0", *arguments]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    running = ServerProcess(process)
    ready = threading.Event()

    def read() -> None:
        for line in process.stdout or ():
            running.output.append(line)
            if found := re.search(r"https?://[^\s/]+:\d+", line):
                running.url = found.group()
            if "ready" in line:
                ready.set()
        ready.set()  # it ended

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert ready.wait(START_TIMEOUT), "".join(running.output)
        assert process.poll() is None, "".join(running.output)
        assert running.url, "".join(running.output)
        yield running
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        if process.stdout is not None:
            process.stdout.close()
