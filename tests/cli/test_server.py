"""Start-up of the server as a process: every failure is one line on standard error, no trace, a non-zero code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mlxcel.cli.server import main


def start(*argv: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "MLXCEL_", "HF_"))}
    return subprocess.run(
        [sys.executable, "-m", "mlxcel.cli", "serve", *argv],
        env={**clean, "MLXCEL_MODELS_DIR": str(cwd / "store"), "HF_HOME": str(cwd / "hf"), **environ},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


def error_line(process: subprocess.CompletedProcess[str]) -> str:
    (line,) = process.stderr.splitlines()
    assert line.startswith("mlxcel serve: error: ")
    return line.removeprefix("mlxcel serve: error: ")


def test_an_unknown_flag(tmp_path: Path) -> None:
    process = start("--modle", "x", cwd=tmp_path)
    assert process.returncode == 2
    assert error_line(process) == "unknown flag --modle; did you mean --model?"


def test_a_missing_model(tmp_path: Path) -> None:
    process = start("-m", "./nowhere", "--port", "0", cwd=tmp_path)
    assert process.returncode == 1
    assert error_line(process) == "model path './nowhere' does not exist"


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        process = start("-m", "x", "--port", str(port), cwd=tmp_path)
    assert process.returncode == 1
    assert error_line(process).startswith(f"cannot listen on 127.0.0.1 port {port}: ")


def test_a_bad_key_file(tmp_path: Path) -> None:
    process = start("-m", "x", "--api-key-file", "missing", cwd=tmp_path)
    assert process.returncode == 2
    assert error_line(process) == "cannot read missing: No such file or directory"


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ([], 1, "no model given"),
        (["-m", "x", "--log-file", "no/log"], 1, "cannot write the log file"),
        (["-m", "smollm2-135m", "--offline", "--port", "0"], 1, "mlxcel download smollm2-135m"),
        (["-m", "smollm2-135m", "-ngl", "12"], 2, "-ngl '12' is not served"),
        (["-m", "x", "--ssl-cert-file", "a", "--ssl-key-file", "b"], 1, "cannot use a with b for HTTPS"),
        (["-m", "x", "--host", "no such host"], 1, "cannot listen on"),
        (["extra"], 2, "unexpected argument 'extra'"),
    ],
)
def test_other_failures_in_this_process(
    argv: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLXCEL_MODELS_DIR", str(tmp_path / "store"))
    monkeypatch.chdir(tmp_path)
    assert main(argv) == code
    error = capsys.readouterr().err
    assert error.startswith("mlxcel-server: error: ")
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "store").exists()


def test_a_server_that_anybody_can_reach_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for argv, warned in ((["--api-key", "k"], False), ([], True)):
        assert main(["-m", "./nowhere", "--host", "0.0.0.0", "--port", "0", *argv]) == 1
        assert ("can be reached from other machines without a key" in capsys.readouterr().out) is warned


def test_help_and_version_need_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", "rubbish")
    assert main(["--unknown", "--help"]) == 0
    assert "usage: mlxcel-server [flags]" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mlxcel ")


HEAVY = {"mlx", "mlx_lm", "numpy", "starlette", "uvicorn", "msgspec", "jinja2", "huggingface_hub", "rich"}


def test_help_and_errors_import_nothing_heavy(tmp_path: Path) -> None:
    """What answers in the terminal must answer at once."""
    script = f"""
import sys
from mlxcel.cli.main import main
for argv in (["--help"], ["serve", "--help"], ["serve", "--nope"], ["run", "--help"], ["run", "--nope"],
             ["download"], ["list", "--models-dir", {str(tmp_path)!r}], ["rm", "a/b"], ["arch", "--help"]):
    main(argv)
print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert process.stderr.splitlines()[-1] == "[]"


def test_a_limit_that_would_be_none_is_a_guard_and_that_is_told(tmp_path: Path) -> None:
    process = start("--decode-timeout", "0", "--port", "0", "--offline", "--model", "no/model", cwd=tmp_path)
    assert process.returncode == 1
    assert "--decode-timeout 0: a request without progress still ends after 300 s" in process.stdout + process.stderr
