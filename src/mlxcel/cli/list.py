"""`mlxcel list`: show the models in the store."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mlxcel.cli.command import Command
from mlxcel.cli.flag import row
from mlxcel.cli.flags_serving import GENERAL_FLAGS, store_root
from mlxcel.cli.parser import Arguments
from mlxcel.cli.values import SWITCH, choice
from mlxcel.models.store import ModelStore, StoredModel, default_root

FLAGS = (
    row("Output", "--json", SWITCH, "", "A JSON array of repo_id, size_bytes, path and modified"),
    row("Output", "--quiet -q", SWITCH, "", "Names only"),
    row("Output", "--verbose -v", SWITCH, "", "Also the path of each model"),
    row("Output", "--sort", choice("name", "size"), "", "Order; size puts the largest first", default="name"),
    store_root("--models-dir --model-store-root"),
    *GENERAL_FLAGS,
)


def main(argv: Sequence[str], program: str = "mlxcel list") -> int:
    """Print the models in the store."""
    return Command(program, "", "Show the models in the store.", FLAGS, _run).main(argv)


def store_of(arguments: Arguments) -> ModelStore:
    """The store that a command was told to use."""
    root: Path | None = arguments.get("--models-dir")
    return ModelStore(root or default_root(os.environ))


def _run(arguments: Arguments) -> int:
    models = list(store_of(arguments))
    if arguments.get("--sort") == "size":
        models.sort(key=lambda model: model.size_bytes, reverse=True)
    if arguments.get("--json"):
        print(json.dumps([_record(model) for model in models], indent=2))
    elif arguments.get("--quiet"):
        for model in models:
            print(model.repo_id)
    elif models:
        _print_table(models, paths=bool(arguments.get("--verbose")))
    else:
        print(f"no models in {store_of(arguments).root}")
    return 0


def _record(model: StoredModel) -> dict[str, Any]:
    return {
        "repo_id": model.repo_id,
        "size_bytes": model.size_bytes,
        "path": str(model.path.absolute()),
        "modified": _time(model).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _print_table(models: Sequence[StoredModel], *, paths: bool) -> None:
    width = max(len(model.repo_id) for model in models)
    for model in models:
        modified = _time(model).astimezone().strftime("%Y-%m-%d %H:%M")
        path = f"  {model.path.absolute()}" if paths else ""
        print(f"{model.repo_id:<{width}}  {model.size_bytes / 2**20:>9.1f} MiB  {modified}{path}")


def _time(model: StoredModel) -> datetime:
    return datetime.fromtimestamp(model.modified, UTC)
