"""The command `mlxcel`: finds the subcommand and hands over."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from mlxcel import __version__
from mlxcel.cli.command import EXIT_USAGE, fail
from mlxcel.cli.process import run_process

SUBCOMMANDS = {
    "serve": ("server", "Serve a model over HTTP"),
    "run": ("run", "Talk to a model in the terminal, or ask it one thing"),
    "download": ("download", "Fetch a model into the store"),
    "list": ("list", "Show the models in the store"),
    "rm": ("remove", "Delete a model from the store"),
    "arch": ("arch", "Show the model architectures that can be loaded"),
}
"""Name of each subcommand: its module in this package, and what it does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `mlxcel SUBCOMMAND ...` and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words else "--help"
    if name in {"--help", "-h", "help"}:
        print(_usage(), end="")
        return 0 if words else EXIT_USAGE
    if name == "--version":
        print(f"mlxcel {__version__}")
        return 0
    if name not in SUBCOMMANDS:
        close = difflib.get_close_matches(name, SUBCOMMANDS, n=1)
        return fail(
            "mlxcel",
            f"unknown command {name!r}; " + (f"did you mean {close[0]}?" if close else "see --help"),
            EXIT_USAGE,
        )
    module = importlib.import_module(f"mlxcel.cli.{SUBCOMMANDS[name][0]}")
    code: int = module.main(words[1:], f"mlxcel {name}")
    return code


def console() -> NoReturn:
    """The executable `mlxcel`."""
    run_process(main)


def _usage() -> str:
    lines = ["usage: mlxcel COMMAND [flags]", "", "Commands:"]
    lines += [f"  {name:<10}{summary}" for name, (_, summary) in SUBCOMMANDS.items()]
    return "\n".join([*lines, "", "`mlxcel COMMAND --help` shows the flags of a command."]) + "\n"
