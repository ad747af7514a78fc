"""Where the time of the native decoder's steps goes: each phase's share, as the thread that asks for a step sees it.

Prefill of 512 tokens, and decoding 1 and 8 rows that have 341 tokens behind them. Prints one JSON document.

    python -m benchmarks.profile --model FILE
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.serving import machine
from mlxcel.kernels import native
from mlxcel.kernels.decoder import build_decoder, decoder_shape
from mlxcel.models.load import load_model

CONTEXT = 341
PREFILL = 512


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Profiles of prefill and decoding."""
    mx.set_default_device(mx.Device(mx.cpu))
    model = load_model(arguments.model).model
    shape = decoder_shape(model)
    if shape is None:
        raise SystemExit("the native decoder cannot run this model")
    most = max(arguments.rows)
    budget = (most + 1) * ((CONTEXT + PREFILL + arguments.steps * len(arguments.rows)) // 64 + 2) * shape.kv_block_bytes
    decoder = build_decoder(model, shape, precision=arguments.precision, threads=arguments.threads, kv_budget=budget)
    random = np.random.default_rng(1)

    def tokens(count: int) -> Any:
        return random.integers(0, shape.vocabulary, count).astype(np.int32)

    def prefill(length: int) -> int:
        sequence = decoder.open()
        decoder.step(tokens(length), [(sequence, length)], None)
        return sequence

    def prefill_once() -> None:
        decoder.close(prefill(PREFILL))

    found = {f"prefill {PREFILL}": _profiled(decoder, prefill_once, max(1, arguments.steps // 20))}
    for rows in arguments.rows:
        sequences = [prefill(CONTEXT) for _ in range(rows)]
        logits = np.empty((rows, shape.vocabulary), np.float32)

        def decode(sequences: Sequence[int] = sequences, logits: Any = logits) -> None:
            decoder.step(tokens(len(sequences)), [(sequence, 1) for sequence in sequences], logits)

        found[f"decode {rows}"] = _profiled(decoder, decode, arguments.steps)
        for sequence in sequences:
            decoder.close(sequence)
    return {
        "machine": machine(),
        "kernels": native.instruction_set(),
        "threads": decoder.threads,
        "precision": arguments.precision,
        "profiles": found,
    }


def _profiled(decoder: Any, step: Any, count: int) -> dict[str, Any]:
    """Milliseconds a step, and each phase's share of them."""
    step()
    decoder.measure(True)
    for _ in range(count):
        step()
    seconds = decoder.profile()
    decoder.measure(False)
    steps = seconds.pop("steps")
    total = sum(seconds.values())
    shares = {phase: round(value / total, 4) for phase, value in seconds.items()}
    return {"milliseconds": round(1000 * total / steps, 3), "steps": steps, "shares": shares}


def _rows(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file or checkpoint folder")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=("fast", "default", "exact"), default="default")
    parser.add_argument("--rows", type=_rows, default=[1, 8], help="rows to decode at once, as in 1,8")
    parser.add_argument("--steps", type=int, default=60)
    print(json.dumps(measure(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
