from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from mlxcel.cli.main import SUBCOMMANDS, main


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: mlxcel {name}")


def test_help_names_every_subcommand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in SUBCOMMANDS)
    assert main([]) == 2
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize(
    ("name", "message"),
    [("srve", "unknown command 'srve'; did you mean serve?"), ("xyzzy", "unknown command 'xyzzy'; see --help")],
)
def test_an_unknown_subcommand(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    assert capsys.readouterr().err == f"mlxcel: error: {message}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("mlxcel 0")


def test_the_installed_commands_exist() -> None:
    scripts = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for command, target in (("mlxcel", "mlxcel.cli.main:console"), ("mlxcel-server", "mlxcel.cli.server:console")):
        assert f'{command} = "{target}"' in scripts
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
