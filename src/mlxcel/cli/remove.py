"""`mlxcel rm`: delete a model from the store."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mlxcel.cli.command import EXIT_FAILURE, Command, CommandError
from mlxcel.cli.flag import FlagError, row
from mlxcel.cli.flags_serving import GENERAL_FLAGS, store_root
from mlxcel.cli.list import store_of
from mlxcel.cli.parser import Arguments
from mlxcel.cli.values import SWITCH
from mlxcel.models.resolve import cached_snapshot
from mlxcel.models.store import is_model_id

FLAGS = (
    row("Output", "--yes -y", SWITCH, "", "Do not ask"),
    store_root("--models-dir --model-store-root"),
    *GENERAL_FLAGS,
)


def main(argv: Sequence[str], program: str = "mlxcel rm") -> int:
    """Delete the model named."""
    summary = "Delete a model from the store. Models outside it, also in the Hugging Face cache, are never touched."
    return Command(program, "MODEL", summary, FLAGS, _run, most_operands=1).main(argv)


def _run(arguments: Arguments) -> int:
    if not arguments.operands:
        raise FlagError("name the model to delete")
    reference = arguments.operands[0]
    store = store_of(arguments)
    model = store.find(reference)
    if model is None:
        cached = cached_snapshot(reference, None, os.environ) if is_model_id(reference) else None
        where = f"; a copy in the Hugging Face cache is not touched: {cached}" if cached else ""
        raise CommandError(f"{reference!r} is not in the model store {store.root}{where}")
    if not arguments.get("--yes") and not _agreed(f"Delete {model.path}?"):
        return EXIT_FAILURE
    removed = store.remove(reference)
    print(f"deleted {removed.repo_id}, {removed.size_bytes / 2**20:.1f} MiB")
    return 0


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise CommandError("nobody to ask: pass --yes to delete without asking")
    try:
        return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False
