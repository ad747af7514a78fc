"""What scheduling and HTTP add to a step: our server beside the bare loop of decoding and sampling, in the same run.

Two kinds of steps. `model`: real ones; where the kernels use every processor, HTTP competes with them. So do the
clients, which run in another process; to keep their own work out of the comparison they read twenty times a second.
`paced`: a step that sleeps instead of computing, which leaves the cost alone, in wall time and in processor time of the
server (Linux only). Takes turns; medians. Prints one JSON document.

    python -m benchmarks.overhead --model smollm2.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.client import prompt_text
from benchmarks.serving import machine, versions
from mlxcel.config import CacheConfig, EngineConfig, ModelConfig, NetworkConfig, ServerConfig
from mlxcel.engine.backend import Backend, Logits
from mlxcel.engine.loading import load_backend
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.sampler import Sampler, sample

BARS_MS = {1: 0.3, 8: 1.0}
"""What a step may cost more than the bare one, by the number of streams."""
STEPS = 900
CLIENT_READS = 0.05
"""Seconds between two looks of a client at what has arrived."""
PROMPT_WORDS = 20
SEED = 7
SAMPLING: dict[str, Any] = {"temperature": 0.8, "seed": SEED, "ignore_eos": True}


class Paced:
    """A backend whose steps take `seconds` and no processor; the first of each width is real, for its logits."""

    def __init__(self, backend: Backend, seconds: float) -> None:
        self._backend = backend
        self._seconds = seconds
        self._logits: dict[int, Logits] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def decode(self, tokens: Sequence[int]) -> Logits:
        rows = len(tokens)
        if rows not in self._logits:
            self._logits[rows] = self._backend.decode(tokens).copy()
        else:
            time.sleep(self._seconds)
        return self._logits[rows]


@dataclass
class Row:
    """A sequence of the bare loop."""

    sampler: Sampler
    mask: None = None
    alternatives: int | None = None
    forced: int | None = None


@dataclass(frozen=True)
class Cost:
    """Milliseconds of one step: by the clock, and of processor time outside the kernels' own work when steps sleep."""

    wall: float
    cpu: float


def bare(backend: Backend, streams: int) -> Cost:
    """Decode and sample in this thread, and nothing else."""
    tokenizer = backend.info.tokenizer
    rows: list[Row] = []
    tokens: list[int] = []
    for key in range(streams):
        prompt = tokenizer.encode(_prompt(key))
        backend.prefill(key, prompt[:-1])
        backend.join(key)
        rows.append(Row(Sampler(SamplingParams(**SAMPLING), prompt, tokenizer)))
        tokens.append(prompt[-1])
    wall = cpu = 0.0
    for step in range(STEPS):
        if step == STEPS // 10:  # the first ones find nothing in the processor's caches
            wall, cpu = time.perf_counter(), time.process_time()
        chosen = sample(rows, backend.decode(tokens), backend.logit_rows)
        tokens = [choice.token for choice in chosen if not isinstance(choice, Exception)]
    steps = STEPS - STEPS // 10
    cost = Cost(1e3 * (time.perf_counter() - wall) / steps, 1e3 * (time.process_time() - cpu) / steps)
    backend.leave([])
    return cost


async def served(url: str, process: int, streams: int) -> Cost:
    """The same through the server, from when all streams have begun until one is nearly done."""
    frames = [0] * streams
    moved = asyncio.Event()

    async def read(index: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
        body = {"prompt": _prompt(index), "max_tokens": STEPS, "stream": True, "cache_prompt": False, **SAMPLING}
        payload = json.dumps(body).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(payload), payload)
        )
        lines, rest = list[bytes](), b""
        while b"data: [DONE]" not in lines:
            await asyncio.sleep(CLIENT_READS)
            piece = await reader.read(1 << 16)
            if not piece:
                raise RuntimeError("the stream broke off")
            *lines, rest = (rest + piece).split(b"\n")
            frames[index] += sum(line.startswith(b"data: {") for line in lines)
            moved.set()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def until(least: int, of: Any) -> None:
        while of(frames) < least:
            moved.clear()
            await moved.wait()

    readers = [asyncio.create_task(read(index)) for index in range(streams)]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await until(STEPS // 20, min)
        before, wall, cpu = await _steps(client), time.perf_counter(), _cpu_seconds(process)
        await until(STEPS * 8 // 10, max)
        after = await _steps(client)
        wall, cpu = time.perf_counter() - wall, _cpu_seconds(process) - cpu
        await asyncio.gather(*readers)
        while (await client.get("/health")).json()["batch"]["active_sequences"]:
            await asyncio.sleep(0.01)
    return Cost(1e3 * wall / (after - before), 1e3 * cpu / (after - before))


async def _steps(client: httpx.AsyncClient) -> int:
    return (await client.get("/health")).json()["observability"]["decode_steps_processed"]


def _cpu_seconds(process: int) -> float:
    """Processor time of all threads of a process."""
    times = (path.read_text().split()[0] for path in Path(f"/proc/{process}/task").glob("*/schedstat"))
    return 1e-9 * sum(map(int, times))


def _prompt(index: int) -> str:
    return prompt_text(f"Story {index}", PROMPT_WORDS)


def _config(arguments: argparse.Namespace) -> ServerConfig:
    return ServerConfig(
        model=ModelConfig(threads=arguments.threads),
        network=NetworkConfig(port=0),
        engine=EngineConfig(parallel=max(BARS_MS)),
        cache=CacheConfig(cache_prompt=False),
    )


def _backend(arguments: argparse.Namespace, step_ms: float) -> Backend:
    backend = load_backend(arguments.model, "model", _config(arguments))
    return Paced(backend, step_ms / 1e3) if step_ms else backend  # type: ignore[return-value]


@contextlib.contextmanager
def server(arguments: argparse.Namespace, step_ms: float) -> Iterator[tuple[str, int]]:
    """This program as a server in a process of its own; gives its address and its number."""
    command = [sys.executable, "-m", "benchmarks.overhead", "--model", arguments.model, "--serve", step_ms]
    command += ["--threads", arguments.threads] if arguments.threads else []
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            while httpx.get(f"{url}/health").status_code != 200:
                time.sleep(0.1)
            yield url, process.pid
        finally:
            process.terminate()


def serve(arguments: argparse.Namespace) -> None:
    """Be the server."""
    from mlxcel.api.app import create_app
    from mlxcel.cli import serving
    from mlxcel.cli.listener import bound
    from mlxcel.engine.engine import Engine

    config = _config(arguments)
    with bound(config.network) as listener:
        print(listener.url, flush=True)
        engine = Engine(config.engine, lambda: _backend(arguments, arguments.serve), config.cache)
        serving.serve(engine, lambda engine: create_app(engine, config), config.network, listener)


def compare(arguments: argparse.Namespace, step_ms: float) -> dict[str, Any]:
    """Both in turns, for each number of streams."""
    backend = _backend(arguments, step_ms)
    alone: dict[int, list[Cost]] = {streams: [] for streams in BARS_MS}
    behind: dict[int, list[Cost]] = {streams: [] for streams in BARS_MS}
    with server(arguments, step_ms) as (url, process):
        for streams in BARS_MS:  # a warm-up
            bare(backend, streams)
            asyncio.run(served(url, process, streams))
        for _ in range(arguments.repeat):
            for streams in BARS_MS:
                alone[streams].append(bare(backend, streams))
                behind[streams].append(asyncio.run(served(url, process, streams)))
    return {str(streams): _report(alone[streams], behind[streams], bar) for streams, bar in BARS_MS.items()}


def _report(alone: list[Cost], behind: list[Cost], bar: float) -> dict[str, Any]:
    added = [after.wall - before.wall for before, after in zip(alone, behind, strict=True)]
    cpu = [after.cpu - before.cpu for before, after in zip(alone, behind, strict=True)]
    return {
        "bare_ms": statistics.median(cost.wall for cost in alone),
        "served_ms": statistics.median(cost.wall for cost in behind),
        "added_ms": statistics.median(added),
        "added_cpu_ms": statistics.median(cpu),
        "bar_ms": bar,
        "passed": statistics.median(added) <= bar,
        "turns_added_ms": added,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=5, help="length of a step that sleeps")
    parser.add_argument("--threads", type=int, help="compute threads of each")
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        serve(arguments)
        return
    results = {"paced": compare(arguments, arguments.step_ms), "model": compare(arguments, 0)}
    print(json.dumps({"machine": machine(), "versions": versions(), "steps": STEPS, **results}, indent=2))


if __name__ == "__main__":
    main()
