"""What structured output costs on the default model.

`mask`: microseconds to note a token and make the mask for the next, along JSON texts that are valid under a nested
schema; `single` is the share of steps at which only one token may come. `choose`: microseconds to choose a token with
and without a mask. `company`: milliseconds of a whole step of rows without a constraint, of the same with one of them
constrained, and once more without, which shows how far equal turns lie apart. `compile`: milliseconds; the first
schema waits for the tokenizer, too. Prints one JSON document, which ends with the bars.

    python -m benchmarks.grammar
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving import machine, versions
from mlxcel.config import EngineConfig, ModelConfig, ServerConfig
from mlxcel.engine.backend import Backend
from mlxcel.engine.constraint import Rule
from mlxcel.engine.generation import Generation
from mlxcel.engine.loading import load_backend
from mlxcel.engine.request import GenerationRequest, SamplingParams
from mlxcel.engine.sampling.chain import Step
from mlxcel.engine.sampling.sampler import Chosen, sample
from mlxcel.engine.sequence import Sequence
from mlxcel.grammar.compiler import Compiler
from mlxcel.models.catalogue import DEFAULT_MODEL
from mlxcel.models.resolve import resolve

MASK_BAR_MS = 0.2
"""For one row and step, the mean."""

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "born": {"type": "string", "format": "date"},
        "role": {"enum": ["captain", "keeper", "fiddler", "cook"]},
        "height": {"type": "number", "minimum": 0, "maximum": 3},
        "married": {"type": ["boolean", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["name", "born", "role", "height", "married", "tags"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": _PERSON, "minItems": 40}
PROMPT = "The people of the lighthouse, as JSON:\n"
_STEPS = 160
_WORDS = ("light", "house", "keeper", "storm", "caf\u00e9", "north", "sea", "old", "oil", "\u6771\u4eac", "rope")


def texts(count: int) -> Iterator[str]:
    """Valid texts, as a model would lay them out."""
    chance = random.Random(7)

    def words(most: int) -> str:
        return " ".join(chance.choices(_WORDS, k=chance.randint(1, most)))

    for number in range(count):
        people = [
            {
                "name": words(3).title(),
                "born": f"19{chance.randint(10, 99)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}",
                "role": chance.choice(["captain", "keeper", "fiddler", "cook"]),
                "height": round(chance.random() * 3, 2),
                "married": chance.choice([True, False, None]),
                "tags": [words(2) for _ in range(chance.randint(0, 5))],
            }
            for _ in range(6)
        ]
        yield json.dumps(people, ensure_ascii=False, indent=number % 3 or None)


def mask_costs(compiler: Compiler, backend: Backend) -> dict[str, Any]:
    """Along texts that are all different."""
    tokenizer, rule = backend.info.tokenizer, compiler.schema(SCHEMA)
    costs: list[float] = []
    single = 0
    for text in texts(12):
        constraint = rule.begin()
        for token in tokenizer.encode(text)[:-1]:
            mask = constraint.mask
            assert mask is not None
            single += int(np.bitwise_count(mask).sum()) == 1
            begin = time.perf_counter()
            constraint.consume(token)
            costs.append(time.perf_counter() - begin)
    costs.sort()
    return {
        "tokens": len(costs),
        "mean": 1e6 * statistics.fmean(costs),
        "median": 1e6 * statistics.median(costs),
        "p99": 1e6 * costs[len(costs) * 99 // 100],
        "largest": 1e6 * costs[-1],
        "single": single / len(costs),
    }


def choose_costs(compiler: Compiler, backend: Backend, repeat: int) -> dict[str, Any]:
    """With a mask that allows little, as between values, and one that allows nearly all, as within strings."""
    rows, size = backend.logit_rows, backend.info.vocabulary
    logits = np.random.default_rng(1).normal(scale=3.0, size=(8, size)).astype(np.float32)
    constraint = compiler.schema({"type": "string"}).begin()
    closed = constraint.mask
    assert closed is not None
    closed = closed.copy()
    constraint.consume(backend.info.tokenizer.encode('"')[0])
    open_ = constraint.mask
    chain, step = rows.chain(SamplingParams()), Step(0.5, False, 0.0)
    report: dict[str, Any] = {}
    for count in (1, 8):
        for name, mask in (("none", None), ("few tokens", closed), ("most tokens", open_)):
            batch, masks = logits[:count], [mask] * count

            def work(batch: Any = batch, masks: Any = masks, count: int = count) -> None:
                rows.choose(batch, [chain] * count, [step] * count, masks)

            report[f"{count} rows, {name}"] = 1e6 * median_time(work, repeat)
    return report


def median_time(work: Callable[[], object], repeat: int) -> float:
    """Seconds."""
    times: list[float] = []
    for _ in range(repeat):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


class Company:
    """Some sequences that are decoded together, one of them perhaps constrained."""

    def __init__(self, backend: Backend, rows: int, rule: Rule | None, first_key: int) -> None:
        self._backend = backend
        prompt = tuple(backend.info.tokenizer.encode(PROMPT))
        self._sequences: list[Sequence] = []
        for row in range(rows):
            sampling = SamplingParams(seed=row, ignore_eos=True)
            request = GenerationRequest(prompt, sampling, rule=rule if row == 0 else None)
            sequence = Sequence(first_key + row, request, Generation(request), backend.info.tokenizer, 10**9)
            backend.prefill(sequence.key, prompt[:-1])
            backend.join(sequence.key)
            self._sequences.append(sequence)

    def step(self) -> float:
        """Seconds of one step of all."""
        begin = time.perf_counter()
        logits = self._backend.decode([sequence.next_input for sequence in self._sequences])
        for sequence, outcome in zip(
            self._sequences, sample(self._sequences, logits, self._backend.logit_rows), strict=True
        ):
            assert isinstance(outcome, Chosen), outcome
            sequence.advance(outcome)
        return time.perf_counter() - begin

    def leave(self) -> None:
        """Give the rows back."""
        self._backend.leave([])


def company_costs(compiler: Compiler, backend: Backend, turns: int) -> dict[str, Any]:
    """Median steps of turns that alternate."""
    rules = {"free": None, "one constrained": compiler.schema(SCHEMA), "free again": None}
    report: dict[str, Any] = {}
    key = 1000
    for rows in (1, 4, 8):
        times: dict[str, list[float]] = {name: [] for name in rules}
        for _ in range(turns):
            for name, rule in rules.items():
                company = Company(backend, rows, rule, key)
                times[name].append(1e3 * statistics.median(company.step() for _ in range(_STEPS)))
                company.leave()
                key += rows
        added, noise = (
            statistics.median(after - before for before, after in zip(times["free"], times[name], strict=True))
            for name in ("one constrained", "free again")
        )
        report[f"{rows} rows"] = {
            **{name: statistics.median(found) for name, found in times.items()},
            "added": added,
            "added by nothing": noise,
        }
    return report


def compile_costs(compiler: Compiler) -> dict[str, Any]:
    """The first schema waits for the tokenizer, too."""
    report: dict[str, Any] = {}
    for name, schema in (("first", {"type": "null"}), ("new", SCHEMA), ("known", SCHEMA)):
        begin = time.perf_counter()
        compiler.schema(schema)
        report[name] = 1e3 * (time.perf_counter() - begin)
    return report


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--repeat", type=int, default=300)
    arguments = parser.parse_args()
    path = arguments.model or resolve(ModelConfig(model=DEFAULT_MODEL)).path
    backend = load_backend(path, path.stem, ServerConfig(engine=EngineConfig(parallel=8, ctx_size=8 * 1024)))
    compiler = Compiler(backend.info)
    compiling = compile_costs(compiler)
    mask = mask_costs(compiler, backend)
    report = {
        "machine": machine(),
        "versions": versions(),
        "compile_ms": compiling,
        "mask_us": mask,
        "choose_us": choose_costs(compiler, backend, arguments.repeat),
        "company_ms": company_costs(compiler, backend, arguments.turns),
        "bars": [{"what": "mask, mean ms", "measured": mask["mean"] / 1e3, "at_most": MASK_BAR_MS}],
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
