from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mlxcel.cli.command import Command, CommandError
from mlxcel.cli.flag import FlagError
from mlxcel.cli.parser import Arguments
from mlxcel.models.errors import ModelError
from mlxcel.telemetry.logs import LogFileError


@pytest.mark.parametrize(
    ("failure", "code"),
    [(FlagError, 2), (ModelError, 1), (LogFileError, 1), (CommandError, 1), (OSError, 1)],
)
def test_a_failure_is_one_line(failure: type[Exception], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work(arguments: Arguments) -> int:
        raise failure("several\n  lines")

    assert Command("mlxcel x", "", "", (), work).main([]) == code
    assert capsys.readouterr().err == "mlxcel x: error: several lines\n"


def test_an_interrupt_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    def work(arguments: Arguments) -> int:
        raise KeyboardInterrupt

    assert Command("mlxcel x", "", "", (), work).main([]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_reader_that_went_away_is_no_traceback() -> None:
    """As in `mlxcel arch | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        process = subprocess.run(
            [sys.executable, "-m", "mlxcel.cli", "arch"], stdout=gone, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert process.returncode == 1
    assert process.stderr == ""
