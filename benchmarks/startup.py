"""Start-up of the server: time until it listens, time until the model answers, memory then, and dear imports.

Prints one JSON document.

    python -m benchmarks.startup --model smollm2-135m
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.serving import machine, versions

_SERVER = Path(sys.executable).with_name("mlxcel-server")
_IMPORT_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|(\s+)(\S+)")


def start_once(model: str) -> dict[str, float]:
    """Seconds until each line, and resident MiB once ready."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [_SERVER, "--model", model, "--port", "0", "--offline"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    figures: dict[str, float] = {}
    try:
        for line in process.stdout or ():
            for word in (b"listening", b"ready"):
                if word in line:
                    figures.setdefault(f"{word.decode()}_seconds", time.perf_counter() - begun)
            if b"ready" in line:
                break
        else:
            raise RuntimeError("the server ended before it was ready")
        figures["rss_mib"] = psutil.Process(process.pid).memory_info().rss / 2**20
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return figures


def dear_imports(count: int) -> list[dict[str, Any]]:
    """The imports of a starting server that take longest, children included, from `python -X importtime`."""
    program = "import mlxcel.cli.server, mlxcel.cli.serving, mlxcel.api.app, mlxcel.engine.runner"
    report = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program], capture_output=True, text=True, check=True
    ).stderr
    found = [_IMPORT_LINE.match(line) for line in report.splitlines()]
    rows = [(int(match[2]), match[4]) for match in found if match]
    return [{"module": name, "milliseconds": micros / 1000} for micros, name in sorted(rows, reverse=True)[:count]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="a model that is on this machine")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["MLXCEL_NO_PROGRESS"] = "1"
    rounds = [start_once(arguments.model) for _ in range(arguments.repeat)]
    report = {
        "machine": machine(),
        "versions": versions(),
        "median": {key: statistics.median(r[key] for r in rounds) for key in rounds[0]},
        "rounds": rounds,
        "imports": dear_imports(12),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
