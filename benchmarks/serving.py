"""Latency and throughput of our server beside llama.cpp's, on the same GGUF file, in the same run.

The two take turns, so that what else the machine does falls on both alike; medians over the turns are reported. Every
prompt is new, prompt caches are off, and answers run to the same length. Prints one JSON document.

    python -m benchmarks.serving --model smollm2.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from benchmarks.client import medians, prompt_text, ratios, stream_completion, stream_together, summarize
from benchmarks.peers import ServerProcess, ServerSettings

_PACKAGES = ("mlxcel", "mlx", "mlx-lm", "xllamacpp", "llguidance", "numpy")
_WARM_UP_TOKENS = 2
_SPARE_TOKENS = 64
_REQUEST_TIMEOUT = 600.0


class Measurement:
    """Rounds of requests against one server."""

    def __init__(self, server: ServerProcess, words: int, new_tokens: int) -> None:
        self.server = server
        self.words = words
        self.new_tokens = new_tokens
        self.rounds: dict[int, list[dict[str, float]]] = {}

    async def run(self, turn: int, clients: int) -> None:
        """Send one prompt from each of `clients` at once and keep the figures."""
        bodies = [
            self._body(prompt_text(f"Story {turn}-{clients}-{index}", self.words), self.new_tokens)
            for index in range(clients)
        ]
        async with self._connect() as client:
            figures = summarize(await stream_together(client, bodies))
        self.rounds.setdefault(clients, []).append(figures)
        print(f"{self.server.name}, {clients} at once, turn {turn}: {_short(figures)}", file=sys.stderr)

    async def fit_prompt(self, prompt_tokens: int) -> None:
        """Warm the server up, and set the words so that a prompt has about `prompt_tokens` tokens."""
        async with self._connect() as client:
            body = self._body(prompt_text("Warm-up", self.words), _WARM_UP_TOKENS)
            counted = (await stream_completion(client, body)).prompt_tokens
        self.words = max(1, self.words + prompt_tokens - counted)

    def report(self) -> dict[str, Any]:
        """Memory, and for each number of clients the medians and the rounds behind them."""
        return {
            **self.server.memory(),
            "clients": {
                str(clients): {"median": medians(rounds), "rounds": rounds} for clients, rounds in self.rounds.items()
            },
        }

    def _connect(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.server.url, timeout=_REQUEST_TIMEOUT)

    def _body(self, prompt: str, tokens: int) -> dict[str, Any]:
        return {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "cache_prompt": False,
            "ignore_eos": True,
        }


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all turns and return the report."""
    settings = ServerSettings(
        model=arguments.model,
        threads=arguments.threads,
        slots=max(arguments.clients),
        slot_context=max(512, arguments.prompt_tokens + arguments.new_tokens + _SPARE_TOKENS),
    )
    starters = {"ours": ServerProcess.ours, "llama": ServerProcess.llama}
    names = [arguments.only] if arguments.only else list(starters)
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(starters[name](settings, logs / f"{name}.log")) for name in names]
        measurements = [Measurement(server, arguments.prompt_tokens, arguments.new_tokens) for server in servers]
        for measurement in measurements:
            await measurement.fit_prompt(arguments.prompt_tokens)
        for turn in range(arguments.repeat):
            for clients in arguments.clients:
                for measurement in measurements:
                    await measurement.run(turn, clients)
        results = {measurement.server.name: measurement.report() for measurement in measurements}
    return {
        "machine": machine(),
        "versions": versions(),
        "settings": {
            "model": arguments.model.name,
            "prompt_tokens": arguments.prompt_tokens,
            "new_tokens": arguments.new_tokens,
            "repeat": arguments.repeat,
            "threads": settings.threads,
            "slots": settings.slots,
            "slot_context": settings.slot_context,
        },
        "results": results,
        "ours_over_llama": _compare(results),
    }


def machine() -> dict[str, Any]:
    """The processor, its cores, and the system."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter here."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _compare(results: Mapping[str, Any]) -> dict[str, Any]:
    if len(results) < 2:
        return {}
    ours, theirs = results["ours"], results["llama"]
    memory = {key: ours[key] / theirs[key] for key in ("rss_mib", "peak_rss_mib") if theirs[key]}
    clients = {
        number: ratios(figures["median"], theirs["clients"][number]["median"])
        for number, figures in ours["clients"].items()
    }
    return {**memory, "clients": clients}


def _short(figures: Mapping[str, float]) -> str:
    return (
        f"ttft {figures['ttft_ms']:.0f} ms, prefill {figures['prefill_tokens_per_s']:.0f} tok/s, "
        f"decode {figures['decode_tokens_per_s']:.1f} tok/s, all {figures['aggregate_tokens_per_s']:.1f} tok/s"
    )


def _clients(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_rounded(inner) for inner in value]
    return value


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--prompt-tokens", type=int, default=352)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--clients", type=_clients, default=[1, 8, 16], help="numbers of clients, as in 1,8")
    parser.add_argument("--repeat", type=int, default=2, help="turns of each server")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="compute threads of each server")
    parser.add_argument("--only", choices=("ours", "llama"))
    print(json.dumps(_rounded(asyncio.run(measure(parser.parse_args()))), indent=2))


if __name__ == "__main__":
    main()
