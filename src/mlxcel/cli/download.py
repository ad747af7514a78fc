"""`mlxcel download`: fetch a model into the store."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from mlxcel.cli.command import Command
from mlxcel.cli.configure import configure
from mlxcel.cli.flag import FlagError
from mlxcel.cli.flags_serving import GENERAL_FLAGS, HUB_FLAGS, store_root
from mlxcel.cli.parser import Arguments
from mlxcel.cli.progress import shown_progress
from mlxcel.config import ModelConfig, ServerConfig
from mlxcel.models.resolve import resolve

FLAGS = (*HUB_FLAGS, store_root("--models-dir --model-store-root"), *GENERAL_FLAGS)


def main(argv: Sequence[str], program: str = "mlxcel download") -> int:
    """Fetch the model named and print where it is."""
    summary = "Fetch a model into the store; one that is there already is only checked."
    return Command(program, "MODEL", summary, FLAGS, _run, most_operands=1).main(argv)


def _run(arguments: Arguments) -> int:
    if not arguments.operands:
        raise FlagError("name the model to download")
    config = configure(arguments, ServerConfig(model=ModelConfig(model=arguments.operands[0]))).model
    with shown_progress(sys.stderr, os.environ) as progress:
        model = resolve(config, progress)
    print(model.path)
    return 0
