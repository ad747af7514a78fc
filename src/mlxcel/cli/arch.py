"""`mlxcel arch`: show the model architectures that can be loaded."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path

from mlxcel.cli.command import Command, CommandError
from mlxcel.cli.flag import row
from mlxcel.cli.flags_serving import GENERAL_FLAGS
from mlxcel.cli.parser import Arguments
from mlxcel.cli.values import SWITCH

FLAGS = (row("Output", "--json", SWITCH, "", "A JSON array of names"), *GENERAL_FLAGS)


def main(argv: Sequence[str], program: str = "mlxcel arch") -> int:
    """Print the value of `model_type` for every architecture."""
    summary = "Show the model architectures that can be loaded, by the model_type of their config.json."
    return Command(program, "", summary, FLAGS, _run).main(argv)


def architectures() -> list[str]:
    """Architectures of the installed mlx-lm, found without importing it. Raises CommandError without mlx-lm."""
    package = importlib.util.find_spec("mlx_lm")
    if package is None or package.origin is None:
        raise CommandError("mlx-lm is not installed")
    modules = (Path(package.origin).parent / "models").glob("*.py")
    # A module is an architecture when it has both classes that the loader looks for.
    return sorted(
        module.stem
        for module in modules
        if "\nclass ModelArgs" in (source := module.read_text(encoding="utf-8")) and "\nclass Model(" in source
    )


def _run(arguments: Arguments) -> int:
    names = architectures()
    print(json.dumps(names) if arguments.get("--json") else "\n".join(names))
    return 0
