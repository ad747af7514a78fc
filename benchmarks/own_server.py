"""What benchmarks of our server alone have in common: arguments, a server while they measure, and a report that decides
the exit status.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.peers import ServerProcess, ServerSettings


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with what `own_server` needs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="compute threads of the server")
    return parser


@contextlib.contextmanager
def own_server(arguments: argparse.Namespace, slots: int, slot_context: int, *flags: str) -> Iterator[ServerProcess]:
    """Our server with so many slots of so many tokens, and further flags; its log is gone afterwards."""
    settings = ServerSettings(arguments.model, arguments.threads, slots, slot_context)
    with (
        tempfile.TemporaryDirectory() as logs,
        ServerProcess.ours(settings, Path(logs) / "ours.log", *flags) as server,
    ):
        yield server


def print_and_exit(report: Mapping[str, Any]) -> None:
    """Print the report; the exit status is 1 unless it `passed`."""
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["passed"] else 1)
