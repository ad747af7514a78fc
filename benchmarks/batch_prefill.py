"""Does it pay to read several short prompts in one step? One after the other against together, on the native decoder.

Besides the time for all of them, what counts is when each is ready: one after the other the first is ready early,
together all are ready at the end. Both take turns; medians are reported, in milliseconds. Prints one JSON document.

    python -m benchmarks.batch_prefill --model smollm2.gguf
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import machine, versions
from mlxcel.config import ModelConfig, ServerConfig
from mlxcel.engine.loading import load_backend

_LENGTHS = (8, 16, 32, 64, 128)
_VOCABULARY = 1000
"""Ids of ordinary tokens in any model."""


class Reader:
    """Reads prompts of random tokens and notes when each is ready."""

    def __init__(self, model: Path, threads: int) -> None:
        self._backend: Any = load_backend(model, "model", ServerConfig(model=ModelConfig(threads=threads)))
        self._decoder = self._backend._decoder
        self._random = np.random.default_rng(1)

    def read(self, steps: Sequence[Sequence[int]]) -> list[float]:
        """Seconds until each prompt was ready. steps: lengths of the prompts that are read in one step."""
        ready, key = [], 0
        began = time.perf_counter()
        for lengths in steps:
            pieces = []
            for length in lengths:
                key += 1
                pieces.append((self._backend.kv.number(key), length))
            tokens = self._random.integers(0, _VOCABULARY, sum(lengths)).astype(np.int32)
            self._decoder.step(tokens, pieces, None)
            ready += [time.perf_counter() - began] * len(lengths)
        for used in range(1, key + 1):
            self._backend.kv.discard(used)
        return ready


def compare(reader: Reader, lengths: Sequence[int], repeat: int) -> dict[str, Any]:
    """Both ways to read prompts of these lengths."""
    ways = {"one by one": [[length] for length in lengths], "together": [list(lengths)]}
    times: dict[str, list[list[float]]] = {name: [] for name in ways}
    for _ in range(repeat):
        for name, steps in ways.items():
            times[name].append(reader.read(steps))
    report: dict[str, Any] = {"lengths": list(lengths)}
    for name, rounds in times.items():
        report[name] = {
            "all_ms": 1e3 * statistics.median(ready[-1] for ready in rounds),
            "mean_ms": 1e3 * statistics.median(statistics.mean(ready) for ready in rounds),
        }
    for key in ("all_ms", "mean_ms"):
        report[f"{key[:-3]}_ratio"] = report["together"][key] / report["one by one"][key]
    print(f"{lengths}: all {report['all_ratio']:.2f}, mean {report['mean_ratio']:.2f}", file=sys.stderr)
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    reader = Reader(arguments.model, arguments.threads)
    reports = [compare(reader, [length] * arguments.prompts, arguments.repeat) for length in _LENGTHS]
    print(json.dumps({"machine": machine(), "versions": versions(), "turns": reports}, indent=2))


if __name__ == "__main__":
    main()
