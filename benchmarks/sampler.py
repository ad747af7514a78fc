"""Time to choose the next tokens of a step: everything from the logits to the tokens, for one row and for eight.

Each chain has one stage on, or several. Two kinds of rows: "peaked", as models make them, with a few likely tokens, and
"flat", a normal distribution in which thousands are likely. No step has rows of the last one. `cold` is the same when
something else has used the processor's caches in between, as a step of a model does. Prints one JSON document.

    python -m benchmarks.sampler
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
from mlxcel.engine.sampling.candidates import Floats
from mlxcel.engine.sampling.logprobs import token_logprob
from mlxcel.engine.sampling.rows import Rows, make_rows
from mlxcel.engine.sampling.rows_numpy import NumpyRows
from mlxcel.engine.sampling.sampler import Chosen, Sampler, sample
from mlxcel.kernels import native

BUDGETS = {49152: 150.0, 151936: 400.0}
"""Microseconds that one row may take, by the size of the vocabulary. Eight rows must take less than eight times one."""

BATCH = 8
DISTINCT_ROWS = 2 * BATCH + 1
"""No row comes again in the next step, and every sequence sees them all."""

OTHER_MEMORY = 100 << 20
"""Bytes, as many as the default model's weights."""

_OFF = {"temperature": 0.8, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
_PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.5, "dry_multiplier": 0.8}
CHAINS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, logprobs 20": {"temperature": 0.0},
    "greedy, penalties, DRY": {"temperature": 0.0, **_PENALTIES},
    "default": {},
    "default, penalties, DRY, bias": {**_PENALTIES, "logit_bias": ((7, -1.0), (9, 2.0))},
    "temperature": _OFF,
    "top-n-sigma 1": {**_OFF, "top_n_sigma": 1.0},
    "p-less": {**_OFF, "p_less": True},
    "typical 0.9": {**_OFF, "typical_p": 0.9},
    "top-k 2000": {**_OFF, "top_k": 2000},
    "top-p 0.95": {**_OFF, "top_p": 0.95},
    "min-p 0.05": {**_OFF, "min_p": 0.05},
    "XTC": {**_OFF, "xtc_probability": 1.0},
    "dynamic temperature": {**_OFF, "dynatemp_range": 0.3},
    "mirostat 1": {**_OFF, "mirostat": 1, "mirostat_tau": 2.0},
    "mirostat 2": {**_OFF, "mirostat": 2, "mirostat_tau": 2.0},
    "adaptive-p": {**_OFF, "adaptive_target": 0.3},
    "everything": {
        **_PENALTIES,
        "logit_bias": ((7, -1.0), (9, 2.0)),
        "top_n_sigma": 3.0,
        "p_less": True,
        "typical_p": 0.95,
        "xtc_probability": 1.0,
        "dynatemp_range": 0.3,
    },
}


class Silent:
    """A tokenizer whose tokens are no text: only sampling is measured."""

    vocab_size = 0
    eos_token_ids = frozenset({2})

    def token_bytes(self, token_id: int) -> bytes:
        return b""


class Speaker:
    """A sequence that says whatever it likes."""

    def __init__(self, params: SamplingParams, alternatives: int | None) -> None:
        tokenizer: Any = Silent()
        self.sampler = Sampler(params, tuple(range(100)), tokenizer)
        self.alternatives = alternatives
        self.mask = None
        self.forced: int | None = None


def make_logits(size: int) -> dict[str, Floats]:
    """Rows of each kind, all of them twice: [2 * DISTINCT_ROWS, size]."""
    random = np.random.default_rng(size)
    peaked = random.normal(scale=2.0, size=(DISTINCT_ROWS, size)).astype(np.float32)
    for row in peaked:
        row[random.permutation(size)[:300]] += np.linspace(0, 14, 300, dtype=np.float32)
    flat = random.normal(scale=3.0, size=(DISTINCT_ROWS, size)).astype(np.float32)
    return {"peaked": np.concatenate((peaked, peaked)), "flat": np.concatenate((flat, flat))}


def make_step(name: str, batch: int, logits: Floats, operations: Rows) -> Callable[[int], object]:
    """What step number i of this chain does with so many rows."""
    alternatives = 20 if "logprobs" in name else None
    speakers = [Speaker(SamplingParams(**CHAINS[name], seed=seed), alternatives) for seed in range(batch)]
    tokenizer: Any = Silent()

    def step(number: int) -> None:
        first = number * batch % DISTINCT_ROWS
        for outcome in sample(speakers, logits[first : first + batch], operations):
            if isinstance(outcome, Chosen) and outcome.logprobs is not None:
                token_logprob(outcome.token, outcome.logprobs, tokenizer)

    return step


def median_time(step: Callable[[int], object], repeat: int, other: Floats | None = None) -> float:
    """Microseconds of a step; other: memory to go through before each."""
    times: list[float] = []
    for number in range(repeat):
        if other is not None:
            np.negative(other, out=other)
        begun = time.perf_counter()
        step(number)
        times.append((time.perf_counter() - begun) * 1e6)
    return round(statistics.median(times), 1)


def measure(name: str, logits: Floats, operations: Rows, repeat: int) -> dict[str, Any]:
    """One chain on one kind of rows."""
    steps = [make_step(name, batch, logits, operations) for batch in (1, BATCH)]
    one, eight = (median_time(step, repeat) for step in steps)
    other = np.zeros(OTHER_MEMORY // 4, np.float32)
    cold = [median_time(step, repeat // 3, other) for step in steps]
    found: dict[str, Any] = {
        "chain": name,
        "microseconds": {"1": one, str(BATCH): eight},
        "cold": {"1": cold[0], str(BATCH): cold[1]},
    }
    if budget := BUDGETS.get(logits.shape[1]):
        found["share_of_budget"] = round(one / budget, 2)
    found["rows_factor"] = round(eight / one, 2)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(BUDGETS), help="vocabularies")
    parser.add_argument("--chains", nargs="+", choices=CHAINS, default=list(CHAINS))
    parser.add_argument("--repeat", type=int, default=60)
    parser.add_argument("--numpy", action="store_true", help="without the native kernels")
    arguments = parser.parse_args()
    operations = NumpyRows() if arguments.numpy else make_rows()
    results = [
        {"vocabulary": size, "rows": kind, **measure(name, logits, operations, arguments.repeat)}
        for size in arguments.sizes
        for kind, logits in make_logits(size).items()
        for name in arguments.chains
    ]
    report = {
        "machine": machine(),
        "versions": versions(),
        "instruction_set": None if isinstance(operations, NumpyRows) else native.instruction_set(),
        "budgets_microseconds": BUDGETS,
        "worst": {
            "share_of_budget": max((result.get("share_of_budget", 0.0) for result in results), default=None),
            "rows_factor": max((result["rows_factor"] for result in results), default=None),
        },
        "results": results,
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
