"""Speed of single matrix products of the native kernels, with every form of weights in every precision.

Builds native/bench/bench_products.cpp and runs it. A product of floats is also timed in numpy's OpenBLAS, in turns.
Prints one JSON document.

    python -m benchmarks.kernels
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bandwidth import read_bandwidth
from benchmarks.serving import machine, versions

_NATIVE = Path(__file__).resolve().parents[1] / "native"
_PRODUCTS = _NATIVE / "build" / "bench" / "bench" / "bench_products"
_OUTPUTS = _COLUMNS = 2048
_ROWS = (1, 8, 512)
# A layer of a small encoder over half a minute of sound.
_ENCODER = {"rows": 1500, "columns": 512, "outputs": 2048}
_BLAS_ROUNDS = 12
# Workarounds for processors OpenBLAS does not recognise; they cost speed elsewhere.
_OPENBLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def products(threads: int, outputs: int, columns: int, *rows: int) -> list[dict[str, Any]]:
    """Our products with every form of weights in every precision, for each number of rows."""
    command = [_PRODUCTS, *(str(number) for number in (threads, outputs, columns, *rows))]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def openblas(threads: int, outputs: int, columns: int, rows: int) -> float:
    """GMAC/s of numpy's float32 product, in a process of its own: OpenBLAS reads its settings when it is loaded."""
    environment = {key: value for key, value in os.environ.items() if key not in _OPENBLAS_OVERRIDES}
    environment["OPENBLAS_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "benchmarks.kernels", "--openblas", str(outputs), str(columns), str(rows)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    return float(printed)


def beside_openblas(threads: int, turns: int) -> dict[str, Any]:
    """A product of an encoder's size with dense weights, ours and numpy's in turns."""
    outputs, columns, rows = _ENCODER["outputs"], _ENCODER["columns"], _ENCODER["rows"]
    ours: dict[str, list[float]] = {}
    theirs: list[float] = []
    for _ in range(turns):
        for line in products(threads, outputs, columns, rows):
            if line["precision"] == "exact":
                ours.setdefault(line["weights"], []).append(line["gmac_per_s"])
        theirs.append(openblas(threads, outputs, columns, rows))
    rate = statistics.median(theirs)
    return {
        **_ENCODER,
        "openblas float32": {"gmac_per_s": rate},
        **{
            f"ours {weights}": {"gmac_per_s": (median := statistics.median(rates)), "over_openblas": median / rate}
            for weights, rates in ours.items()
        },
    }


def _time_openblas(outputs: int, columns: int, rows: int) -> float:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, columns), np.float32)
    weights = rng.standard_normal((outputs, columns), np.float32)
    y = np.empty((rows, outputs), np.float32)
    seconds: list[float] = []
    for _ in range(_BLAS_ROUNDS):
        start = time.perf_counter()
        np.matmul(x, weights.T, out=y)
        seconds.append(time.perf_counter() - start)
    return rows * columns * outputs / min(seconds) * 1e-9


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--turns", type=int, default=5, help="turns beside OpenBLAS")
    parser.add_argument("--openblas", type=int, nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.openblas:
        print(_time_openblas(*arguments.openblas))
        return
    subprocess.run(["make", "-C", _NATIVE, "bench"], check=True, stdout=sys.stderr)
    threads: int = arguments.threads
    report = {
        "machine": machine(),
        "versions": versions(),
        "settings": {"threads": threads, "outputs": _OUTPUTS, "columns": _COLUMNS},
        "read_bandwidth_gb_per_s": read_bandwidth(threads) / 1e9,
        "products": products(threads, _OUTPUTS, _COLUMNS, *_ROWS),
        "encoder_product": beside_openblas(threads, arguments.turns),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
