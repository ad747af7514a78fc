"""The native kernels alone, without engine and HTTP, beside llama.cpp's in the same run on the same threads.

Both run the default model's own file, and llama.cpp also the same weights as Q4_0, the format it is fastest with, with
and without its flash attention. Contenders take turns, so that what else the machine does falls on all alike; a figure
is the median of the turns, of each turn's median step. The best token is picked on both sides. Prints one JSON
document, which ends with the ratios that have a bar to clear. Beside the ratio of the medians stands that of the best
turns, which on a busy machine is the better guess at what a quiet one would show.

    python -m benchmarks.decode
    python -m benchmarks.decode --only decode,prefill --turns 3
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

import mlx.core as mx

from benchmarks import llamacpp
from benchmarks.bandwidth import read_bandwidth
from benchmarks.native import LLAMA_1B, PIECE, NativeDecoder, random_model
from benchmarks.serving import machine, versions
from mlxcel.chat.template import ChatTemplate
from mlxcel.config import ModelConfig
from mlxcel.kernels import native
from mlxcel.kernels.decoder import KV_BLOCK
from mlxcel.models.catalogue import DEFAULT_MODEL
from mlxcel.models.device import select_device
from mlxcel.models.load import LoadedModel, load_model
from mlxcel.models.mlxlm import make_prompt_cache
from mlxcel.models.resolve import resolve
from mlxcel.models.store import default_root

PREFILL_TOKENS = 512
CONTEXT = 341
WIDE_ROWS = 8
LONG_CONTEXTS = (0, 1024, 2048, 4096, 8191)
QUESTION = "What is the capital of France?"
# Steps a turn.
_STEPS = 32
_WIDE_STEPS = 16
_FEW_STEPS = 16
_STOCK_STEPS = 3
_WARM_UP_STEPS = 2
_CONTEXT_1B = 128

# OpenBLAS reads these when it is loaded. They are workarounds for processors it does not recognise.
_OPENBLAS_OVERRIDES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

Report = dict[str, Any]
Result = TypeVar("Result")


class Contender(Protocol):
    """What is measured: some sequences under a model."""

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Have one sequence for each prompt, holding that prompt."""
        ...

    def prefill(self, prompt: Sequence[int]) -> int:
        """Run a prompt alone; returns the best next token."""
        ...

    def step(self, tokens: Sequence[int]) -> list[int]:
        """Append one token to each sequence; returns the best next token of each."""
        ...


class Bench:
    """The contenders, and what each part of the benchmark measures with them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.turns: int = arguments.turns
        self.threads: int = arguments.threads
        self.path: Path = arguments.model or resolve(ModelConfig(model=DEFAULT_MODEL)).path
        self.bars: list[Report] = []
        self._tokens = random.Random(7)
        self._theirs: dict[str, llamacpp.LlamaCppModel] = {}
        self._decoders_of_theirs: list[llamacpp.LlamaCppDecoder] = []
        self._thread_of_theirs = ThreadPoolExecutor(max_workers=1)

    def run(self, part: str) -> Report:
        """One part of the benchmark."""
        try:
            return PARTS[part](self)
        finally:
            while self._decoders_of_theirs:
                self._in_their_thread(self._decoders_of_theirs.pop().close)
            gc.collect()

    def prefill(self) -> Report:
        """A prompt of 512 tokens, the output head for its last token included."""
        prompt = self._prompt(PREFILL_TOKENS)
        contenders = self._contenders(rows=1, context=PREFILL_TOKENS + 64)
        seconds = self._take_turns(contenders, lambda contender: _timed(lambda: contender.prefill(prompt)))
        figures = _figures(seconds, PREFILL_TOKENS)
        for precision, bar in (("default", 1.3), ("fast", 2.2)):
            ratio = figures[f"ours {precision} over llama.cpp Q4_0"]
            self._bar(f"prefill of 512, {precision} precision, over llama.cpp Q4_0", ratio, bar)
        return figures

    def decode(self) -> Report:
        """One row, from an empty context and from one of 341 tokens."""
        contenders = self._contenders(rows=1, context=CONTEXT + 2 * _STEPS)
        report: Report = {}
        for context in (0, CONTEXT):
            figures = report[f"context {context}"] = self._decode(contenders, 1, context, _STEPS)
            name = f"decode of one row at context {context} over llama.cpp Q4_0"
            self._bar(name, figures["ours default over llama.cpp Q4_0"], 1.5)
        return report

    def wide(self) -> Report:
        """Eight rows at once, from contexts of 341 tokens."""
        contenders = self._contenders(rows=WIDE_ROWS, context=CONTEXT + 2 * _WIDE_STEPS)
        return {f"context {CONTEXT}": self._decode(contenders, WIDE_ROWS, CONTEXT, _WIDE_STEPS)}

    def long(self) -> Report:
        """Ours over a long prompt: how much dearer a step gets with every 1024 keys, and the whole prefill."""
        ours = self._ours("default", rows=1, context=LONG_CONTEXTS[-1] + 64)
        prompt = self._prompt(LONG_CONTEXTS[-1])
        steps: dict[int, float] = {}
        prefill_seconds, at = 0.0, 0
        ours.fill([[]])
        for target in LONG_CONTEXTS:
            while at < target:
                piece = prompt[at : min(at + PIECE, target)]
                prefill_seconds += _timed(lambda piece=piece: ours.extend(piece))
                at += len(piece)
            steps[target] = _step_seconds(ours, [1], _STEPS)
            at += _STEPS
        return {
            "prefill_tokens_per_s": (at - len(LONG_CONTEXTS) * _STEPS) / prefill_seconds,
            "step_us": {str(context): seconds * 1e6 for context, seconds in steps.items()},
            "step_us_per_1024_keys": {
                f"{low} to {high}": (steps[high] - steps[low]) / (high - low) * 1024e6
                for low, high in itertools.pairwise(LONG_CONTEXTS)
            },
        }

    def billion(self) -> Report:
        """One row of a model of a billion weights, against what memory can deliver."""
        model = random_model(LLAMA_1B)
        ours = NativeDecoder(
            model, precision="default", threads=self.threads, rows=1, context=_CONTEXT_1B + 2 * _FEW_STEPS
        )
        prompt = self._prompt(_CONTEXT_1B)
        bandwidths = [read_bandwidth(self.threads)]
        turns: list[list[float]] = []
        for _ in range(self.turns):
            ours.fill([prompt])
            turns.append(_step_times(ours, [1], _FEW_STEPS)[_WARM_UP_STEPS:])
            bandwidths.append(read_bandwidth(self.threads))
        # The head reads the embedding's weights (they are tied), so that a step reads every weight once.
        read = ours.weight_bytes + ours.shape.kv_block_bytes / KV_BLOCK * (_CONTEXT_1B + _FEW_STEPS / 2)
        # What memory delivers changes with what else the machine does: a turn's share is of what it gave around it.
        seconds = [statistics.median(turn) for turn in turns]
        around = [max(pair) for pair in itertools.pairwise(bandwidths)]
        shares = [read / value / best for value, best in zip(seconds, around, strict=True)]
        share = {"median": statistics.median(shares), "best": read / min(map(min, turns)) / max(bandwidths)}
        self._bar("share of the read bandwidth, one row of a 1B model", share, 0.75)
        return {
            **_figure(seconds, 1),
            "bytes_read": read,
            "gb_per_s": read / statistics.median(seconds) / 1e9,
            "read_bandwidth_gb_per_s": [value / 1e9 for value in bandwidths],
            "share": share,
        }

    def stock(self) -> Report:
        """One row from an empty context, against mlx-lm on MLX's own CPU kernels."""
        ours, theirs = self._ours("default", rows=1, context=2 * _STEPS), StockModel(load_model(self.path))
        contenders: dict[str, Contender] = {"ours default": ours, "stock MLX": theirs}
        # Theirs takes so long that a few steps tell.
        steps = {id(ours): _STEPS, id(theirs): _STOCK_STEPS}
        seconds = self._take_turns(contenders, lambda one: _decode_seconds(one, [[]], steps[id(one)]))
        ratio = _ours_over_theirs(seconds, "ours default", "stock MLX")
        self._bar("decode of one row over stock MLX", ratio, 30)
        return {**_figures(seconds, 1), "ours default over stock MLX": ratio}

    def text(self) -> Report:
        """What each says, greedily, to a question whose answer is known."""
        loaded = load_model(self.path)
        template = ChatTemplate(loaded.chat_template or "", loaded.special_tokens)
        prompt = loaded.tokenizer.encode(template.render([{"role": "user", "content": QUESTION}]))
        answers = {"question": QUESTION}

        def answer(contender: Contender) -> list[int]:
            tokens = [contender.prefill(prompt)]
            while tokens[-1] not in loaded.tokenizer.eos_token_ids and len(tokens) < _STEPS:
                tokens += contender.step(tokens[-1:])
            return tokens

        for name, contender in self._contenders(rows=1, context=PREFILL_TOKENS).items():
            answers[name] = loaded.tokenizer.decode(self._run(contender, answer))
        return answers

    def _decode(self, contenders: Mapping[str, Contender], rows: int, context: int, steps: int) -> Report:
        prompts = [self._prompt(max(0, context - _WARM_UP_STEPS)) for _ in range(rows)]
        seconds = self._take_turns(contenders, lambda contender: _decode_seconds(contender, prompts, steps))
        return _figures(seconds, rows)

    def _take_turns(
        self, contenders: Mapping[str, Contender], measure: Callable[[Contender], float]
    ) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for turn in range(self.turns):
            for name, contender in contenders.items():
                seconds[name].append(self._run(contender, measure))
                print(f"turn {turn}, {name}: {seconds[name][-1] * 1e3:.2f} ms", file=sys.stderr)
        return seconds

    def _run(self, contender: Contender, work: Callable[[Contender], Result]) -> Result:
        if isinstance(contender, llamacpp.LlamaCppDecoder):
            return self._in_their_thread(lambda: work(contender))
        return work(contender)

    def _in_their_thread(self, work: Callable[[], Result]) -> Result:
        """llama.cpp has a thread to itself, for everything: it sets the matrix unit (AMX) up once a thread and trusts
        that nobody else there uses it, and has helpers for each thread that calls it."""
        return self._thread_of_theirs.submit(work).result()

    def _contenders(self, *, rows: int, context: int) -> dict[str, Contender]:
        contenders: dict[str, Contender] = {
            f"ours {precision}": self._ours(precision, rows=rows, context=context) for precision in ("default", "fast")
        }
        for weights in ("Q4_0", "Q4_1"):
            for flash in (False, True):
                model = self._model_of_theirs(weights)
                decoder = self._in_their_thread(
                    lambda model=model, flash=flash: llamacpp.LlamaCppDecoder(
                        model, threads=self.threads, rows=rows, context=context, flash_attention=flash
                    )
                )
                self._decoders_of_theirs.append(decoder)
                contenders[f"llama.cpp {weights}{', flash attention' if flash else ''}"] = decoder
        return contenders

    def _ours(self, precision: str, *, rows: int, context: int) -> NativeDecoder:
        model = load_model(self.path).model
        return NativeDecoder(model, precision=precision, threads=self.threads, rows=rows, context=context)

    def _model_of_theirs(self, weights: str) -> llamacpp.LlamaCppModel:
        if weights not in self._theirs:
            path = self.path
            if weights == "Q4_0":
                cache = default_root(os.environ).parent / "benchmarks"
                target = cache / f"{path.stem}-Q4_0.gguf"
                path = self._in_their_thread(lambda: llamacpp.requantise(self.path, target, threads=self.threads))
            self._theirs[weights] = self._in_their_thread(lambda: llamacpp.LlamaCppModel(path))
        return self._theirs[weights]

    def _prompt(self, length: int) -> list[int]:
        """Tokens that say nothing; special ones, which come first in the vocabulary, are not among them."""
        return [self._tokens.randrange(100, 10000) for _ in range(length)]

    def _bar(self, name: str, ratio: Mapping[str, float], bar: float) -> None:
        self.bars.append({"name": name, **ratio, "bar": bar, "cleared": ratio["median"] >= bar})


class StockModel:
    """An mlx-lm model as it is, one sequence."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._model = loaded.model
        self.fill([[]])

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """Start again with an empty context, or with one prompt."""
        self._cache = make_prompt_cache(self._model)
        if prompts[0]:
            self.step(prompts[0])

    def prefill(self, prompt: Sequence[int]) -> int:
        """Run a prompt alone; returns the best next token."""
        self.fill([[]])
        return self.step(prompt)[0]

    def step(self, tokens: Sequence[int]) -> list[int]:
        """Append tokens to the sequence; returns the best next token."""
        logits: mx.array = self._model(mx.array([list(tokens)]), cache=self._cache)
        return [int(mx.argmax(logits[0, -1]).item())]


def _timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _decode_seconds(contender: Contender, prompts: Sequence[Sequence[int]], steps: int) -> float:
    """The median of some steps after the prompts and a warm-up."""
    contender.fill(prompts)
    tokens = [1] * len(prompts)
    for _ in range(_WARM_UP_STEPS):
        tokens = contender.step(tokens)
    return _step_seconds(contender, tokens, steps)


def _step_seconds(contender: Contender, tokens: Sequence[int], steps: int) -> float:
    return statistics.median(_step_times(contender, tokens, steps))


def _step_times(contender: Contender, tokens: Sequence[int], steps: int) -> list[float]:
    seconds: list[float] = []
    for _ in range(steps):
        start = time.perf_counter()
        tokens = contender.step(tokens)
        seconds.append(time.perf_counter() - start)
    return seconds


def _figure(seconds: Sequence[float], tokens: int) -> Report:
    median = statistics.median(seconds)
    return {
        "tokens_per_s": tokens / median,
        "milliseconds": median * 1e3,
        "turns_milliseconds": [value * 1e3 for value in seconds],
    }


def _figures(seconds: Mapping[str, Sequence[float]], tokens: int) -> Report:
    """Of each contender, and ours over the better of llama.cpp's ways with each weights."""
    figures = {name: _figure(values, tokens) for name, values in seconds.items()}
    ratios = {
        f"{ours} over llama.cpp {weights}": _ours_over_theirs(seconds, ours, weights)
        for weights in ("Q4_0", "Q4_1")
        for ours in seconds
        if ours.startswith("ours") and any(weights in name for name in seconds)
    }
    return figures | ratios


def _ours_over_theirs(seconds: Mapping[str, Sequence[float]], ours: str, word: str) -> Report:
    """Ratios of speed over the better of those with `word` in their names: of the medians, and of the best turns. The
    two differ where other work on the machine delays one side more than the other."""
    theirs = [values for name, values in seconds.items() if word in name]
    return {
        "median": min(statistics.median(values) for values in theirs) / statistics.median(seconds[ours]),
        "best": min(min(values) for values in theirs) / min(seconds[ours]),
    }


def _rounded(value: Any) -> Any:
    """Four digits are more than any figure here is worth."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value


PARTS: dict[str, Callable[[Bench], Report]] = {
    "text": Bench.text,
    "decode": Bench.decode,
    "wide": Bench.wide,
    "prefill": Bench.prefill,
    "long": Bench.long,
    "billion": Bench.billion,
    "stock": Bench.stock,
}


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return parts


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="GGUF file; otherwise the default model")
    parser.add_argument("--turns", type=int, default=5, help="turns of each contender")
    parser.add_argument("--threads", type=int, default=native.default_threads(), help="compute threads of each")
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=f"some of: {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if overrides := [name for name in _OPENBLAS_OVERRIDES if name in os.environ]:
        parser.error(f"unset {' and '.join(overrides)}: they change what stock MLX and numpy reach")
    select_device("cpu")
    system = llamacpp.start()
    bench = Bench(arguments)
    results: Report = {}
    for part in arguments.only:
        print(f"{part}: {' '.join((PARTS[part].__doc__ or '').split())}", file=sys.stderr)
        results[part] = bench.run(part)
    report = {
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "model": bench.path.name,
            "threads": bench.threads,
            "turns": bench.turns,
            "kernels": native.instruction_set(),
            "llama_cpp": system,
        },
        "results": results,
        "bars": bench.bars,
    }
    print(json.dumps(_rounded(report), indent=2))


if __name__ == "__main__":
    main()
