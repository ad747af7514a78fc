"""The executables as processes: streams that are closed, signals at odd times, the way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mlxcel.cli.process import interruptible
from tests.models import tiny

BIN = Path(sys.executable).parent


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, env={**os.environ, "BIN": str(BIN)}
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("$BIN/mlxcel list >&-", 0),
        ("$BIN/mlxcel --version 2>&- <&-", 0),
        ("$BIN/mlxcel-server -m /nowhere >&-", 1),
        ("$BIN/mlxcel-server --help >/dev/full", 1),
        ("$BIN/mlxcel run /nowhere -p hi <&- >&- 2>&-", 1),
    ],
)
def test_closed_streams_are_no_crash(command: str, code: int) -> None:
    done = shell(command)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [("{% for %}", "--chat-template"), ("{{ messages }", "--chat-template")],
)
def test_a_template_that_is_none_stops_the_start(content: str, words: str) -> None:
    done = subprocess.run(
        [BIN / "mlxcel-server", "-m", "/nowhere", "--port", "0", "--chat-template", content],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_leaving_never_aborts(tmp_path: Path) -> None:
    """Several at once, again and again: the end of the process meets model threads in every state."""
    model = tiny.write_gguf(tmp_path / "tiny.gguf", {**tiny.CONFIG, "max_position_embeddings": 1024})
    command = [BIN / "mlxcel", "run", model, "-p", "hi", "-n", "3"]
    for _ in range(3):
        running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(4)]
        for process in running:
            error = process.communicate(timeout=60)[1]
            assert (process.returncode, error) == (0, b"")


def test_signals_are_exceptions_only_inside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit) as leaving, interruptible():
        os.kill(os.getpid(), signal.SIGTERM)
    assert leaving.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
