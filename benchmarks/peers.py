"""The servers under measurement, as child processes: ours, and llama.cpp's from the `xllamacpp` package.

Run as a program this file is the llama.cpp child: it serves one GGUF file until it is terminated.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil

_ROOT = Path(__file__).resolve().parents[1]
_START_SECONDS = 300
# Both are workarounds for virtual machines whose processor OpenBLAS does not recognise, and cost speed elsewhere.
_OPENBLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What both servers are told."""

    model: Path
    threads: int
    slots: int
    slot_context: int
    """Tokens of context for each slot."""


class ServerProcess:
    """A server running as a child on a free port of this machine, as a context manager."""

    def __init__(self, name: str, command: Sequence[str], port: int, threads: int, log: Path) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._command = command
        self._threads = threads
        self._log = log

    @classmethod
    def ours(cls, settings: ServerSettings, log: Path, *flags: str) -> Self:
        """`mlxcel-server` of the environment this program runs in, with further flags."""
        port = _free_port()
        command = [
            *(str(Path(sys.executable).with_name("mlxcel-server")), "--model", str(settings.model.resolve())),
            *("--host", "127.0.0.1", "--port", str(port), "--parallel", str(settings.slots)),
            *("--ctx-size", str(settings.slots * settings.slot_context), *flags),
        ]
        return cls("ours", command, port, settings.threads, log)

    @classmethod
    def llama(cls, settings: ServerSettings, log: Path) -> Self:
        """llama.cpp's server, in the child program below."""
        port = _free_port()
        command = [
            *(sys.executable, "-m", "benchmarks.peers", "--model", str(settings.model.resolve())),
            *("--port", str(port), "--threads", str(settings.threads), "--slots", str(settings.slots)),
            *("--slot-context", str(settings.slot_context)),
        ]
        return cls("llama", command, port, settings.threads, log)

    def __enter__(self) -> Self:
        environment = {key: value for key, value in os.environ.items() if key not in _OPENBLAS_OVERRIDES}
        environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(self._threads))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait_until_healthy()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def memory(self) -> dict[str, float]:
        """Resident memory of the server in MiB: now, and at its highest."""
        processes = [psutil.Process(self._process.pid)]
        processes += processes[0].children(recursive=True)
        now = sum(process.memory_info().rss for process in processes)
        peak = sum(_peak_rss(process.pid) for process in processes)
        return {"rss_mib": now / 2**20, "peak_rss_mib": peak / 2**20}

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                tail = self._log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.name} ended with status {self._process.returncode}:\n{tail}")
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} was not healthy within {_START_SECONDS} s; see {self._log}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _peak_rss(pid: int) -> int:
    """Highest resident size in bytes; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def _serve_llama(arguments: argparse.Namespace) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(arguments.model)
    params.hostnames = ["127.0.0.1"]
    params.port = arguments.port
    params.n_parallel = arguments.slots
    params.n_ctx = arguments.slots * arguments.slot_context
    params.cpuparams.n_threads = arguments.threads
    params.cpuparams_batch.n_threads = arguments.threads
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.fit_params = False
    params.ui = False
    server = xllamacpp.Server(params)
    print(f"serving at {server.listening_address}", flush=True)
    # The server works on threads of its own until the process ends.
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)


def main() -> None:
    """Serve a GGUF file with llama.cpp."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--slot-context", type=int, required=True)
    # Before any thread starts, so that all of them leave the signals to `sigwait`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    _serve_llama(parser.parse_args())


if __name__ == "__main__":
    main()
