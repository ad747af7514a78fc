"""Time to the first token of a prompt whose beginning is in the prompt cache, beside a cold one, in the same run.

Ours and llama.cpp's server take turns on the same GGUF file. In each turn a server gets a new text, which is cold, and
then the same text with another ending. Prints one JSON document.

    python -m benchmarks.prefix --model smollm2.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from benchmarks.client import prompt_text, stream_completion
from benchmarks.peers import ServerProcess, ServerSettings
from benchmarks.serving import machine, versions

_ENDING = " And then, after all of that, they came to"
_STARTERS = {"ours": ServerProcess.ours, "llama": ServerProcess.llama}


async def turn(server: ServerProcess, name: str, words: int) -> dict[str, float]:
    """Milliseconds to the first token of a cold prompt, and of one that goes on from it."""
    text = prompt_text(name, words)
    times = {}
    async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
        for kind, prompt in (("cold_ms", text), ("cached_ms", text + _ENDING)):
            body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "cache_prompt": True}
            stream = await stream_completion(client, body)
            times[kind] = 1e3 * stream.time_to_first_token
            times["prompt_tokens"] = stream.prompt_tokens
    print(f"{server.name}: {times['cold_ms']:.0f} ms cold, {times['cached_ms']:.0f} ms cached", file=sys.stderr)
    return times


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all turns and return the report."""
    settings = ServerSettings(arguments.model, arguments.threads, 1, arguments.words * 2 + 512)
    names = [arguments.only] if arguments.only else list(_STARTERS)
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = [stack.enter_context(_STARTERS[name](settings, logs / f"{name}.log")) for name in names]
        rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for server in servers:
            await turn(server, "Warm-up", 50)
        for number in range(arguments.repeat):
            for server in servers:
                rounds[server.name].append(await turn(server, f"Story {number}", arguments.words))
    medians = {
        name: {key: statistics.median(r[key] for r in found) for key in found[0]} for name, found in rounds.items()
    }
    return {
        "machine": machine(),
        "versions": versions(),
        "median": medians,
        "cached_over_cold": {name: found["cached_ms"] / found["cold_ms"] for name, found in medians.items()},
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--words", type=int, default=1950, help="of the common text: about as many tokens")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="compute threads of each server")
    parser.add_argument("--only", choices=tuple(_STARTERS))
    print(json.dumps(asyncio.run(measure(parser.parse_args())), indent=2))


if __name__ == "__main__":
    main()
