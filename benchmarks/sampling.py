"""Time to choose a token from one row of logits, for the usual chains, with the native kernels and with numpy.

Two kinds of rows: "peaked", as models make them, with a few likely tokens, and "flat", a normal distribution in which
thousands are likely. Prints one JSON document.

    python -m benchmarks.sampling
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.serving import machine, versions
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.chain import Sampler
from mlxcel.engine.sampling.logprobs import token_logprob
from mlxcel.engine.sampling.rows import Floats, Rows, rows
from mlxcel.engine.sampling.rows_numpy import NumpyRows
from mlxcel.kernels import native

GREEDY_BAR, CHAIN_BAR = 100.0, 500.0
"""Microseconds a row of the larger size may take."""

_OFF = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
CHAINS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(temperature=0.0),
    "greedy, logprobs 20": SamplingParams(temperature=0.0),
    "greedy, penalties": SamplingParams(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5),
    "default": SamplingParams(seed=1),
    "default, penalties": SamplingParams(repetition_penalty=1.1, presence_penalty=0.5, seed=1),
    "temperature": SamplingParams(**_OFF),
    "top-k 2000": SamplingParams(**(_OFF | {"top_k": 2000})),
    "top-p 0.95": SamplingParams(**(_OFF | {"top_p": 0.95})),
    "min-p 0.05": SamplingParams(**(_OFF | {"min_p": 0.05})),
}


class Silent:
    """A tokenizer whose tokens are no text: only sampling is measured."""

    def token_bytes(self, token_id: int) -> bytes:
        return b""


def make_rows(size: int) -> dict[str, Floats]:
    """A row of each kind."""
    random = np.random.default_rng(size)
    peaked = random.normal(scale=2.0, size=size).astype(np.float32)
    peaked[random.permutation(size)[:300]] += np.linspace(0, 14, 300, dtype=np.float32)
    return {"peaked": peaked, "flat": random.normal(scale=3.0, size=size).astype(np.float32)}


def step(name: str, params: SamplingParams, row: Floats, operations: Rows) -> Callable[[], object]:
    """What one step of this chain does."""
    sampler = Sampler(params, tuple(range(100)), operations)
    if "logprobs" not in name:
        return lambda: sampler.sample(row)
    tokenizer: Any = Silent()
    return lambda: token_logprob(row, sampler.sample(row), 20, tokenizer, operations)


def median_times(steps: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """Microseconds of each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeat):
        for name, run in steps.items():
            begun = time.perf_counter()
            run()
            times[name].append((time.perf_counter() - begun) * 1e6)
    return {name: round(statistics.median(taken), 1) for name, taken in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[49152, 151936])
    parser.add_argument("--repeat", type=int, default=50)
    arguments = parser.parse_args()
    implementations: dict[str, Rows] = {"numpy": NumpyRows()}
    if not isinstance(rows(), NumpyRows):
        implementations["native"] = rows()
    results: list[dict[str, Any]] = []
    for size in arguments.sizes:
        for kind, row in make_rows(size).items():
            for name, params in CHAINS.items():
                steps = {key: step(name, params, row, operations) for key, operations in implementations.items()}
                taken = median_times(steps, arguments.repeat)
                entry: dict[str, Any] = {"vocabulary": size, "row": kind, "chain": name, "microseconds": taken}
                if "native" in taken:
                    bar = GREEDY_BAR if name == "greedy" else CHAIN_BAR
                    entry["share_of_bar"] = round(taken["native"] / bar, 3)
                    entry["speedup"] = round(taken["numpy"] / taken["native"], 1)
                results.append(entry)
    report = {
        "machine": machine(),
        "versions": versions(),
        "instruction_set": native.instruction_set() if "native" in implementations else None,
        "bars_microseconds": {"greedy": GREEDY_BAR, "chain": CHAIN_BAR},
        "results": results,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
