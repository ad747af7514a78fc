"""Does memory grow? Clients send a mixture of requests for minutes, and the server's resident memory is sampled.

The slope is fitted to the means of stretches of as many samples each after the warm-up, because samples close to each
other are not independent; its bounds are those of 95 % confidence. Prints one JSON document, and the samples of each
minute on standard error; the exit status is 1 when even the lower bound is above what is allowed.

    python -m benchmarks.soak --model smollm2.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from benchmarks.mixture import TEXT, WrongAnswer, send_mixture
from benchmarks.own_server import make_parser, own_server, print_and_exit
from benchmarks.peers import ServerProcess
from benchmarks.serving import machine, versions

STRETCHES = 10
STUDENT_95 = 2.306
"""Two-sided 95 % quantile of Student's distribution with STRETCHES - 2 degrees of freedom."""
SAMPLE_SECONDS = 2.0
SLOT_CONTEXT = 1024
SLOTS = 4
CACHE = ("--prompt-cache-capacity-bytes", "64M", "--kv-cache-budget", "64M")
"""The prompt cache takes all memory for keys and values before the first sample, and gives it to requests that need it:
a cache that still fills up is no leak, and how many long requests meet is a matter of chance."""
ROUNDS = 3
"""Of the longest requests, before the first sample."""

Sample = tuple[float, float]
"""Seconds since the start, resident MiB."""


def slope(samples: Sequence[Sample]) -> tuple[float, float]:
    """MiB an hour, and how far off that may be, of at least STRETCHES samples; there may be gaps between them."""
    borders = [len(samples) * stretch // STRETCHES for stretch in range(STRETCHES + 1)]
    stretches = [samples[begin:end] for begin, end in itertools.pairwise(borders)]
    times = [statistics.fmean(at for at, _ in stretch) / 3600 for stretch in stretches]
    sizes = [statistics.fmean(size for _, size in stretch) for stretch in stretches]
    rate, start = statistics.linear_regression(times, sizes)
    rest = sum((size - start - rate * at) ** 2 for at, size in zip(times, sizes, strict=True))
    middle = statistics.fmean(times)
    spread = sum((at - middle) ** 2 for at in times)
    return rate, STUDENT_95 * (rest / (STRETCHES - 2) / spread) ** 0.5


async def fill(server: ServerProcess, clients: int) -> None:
    """Have as much in memory at once as the mixture may ever bring together."""
    too_long = {"prompt": "x " * 100_000}

    async def send(client: httpx.AsyncClient, body: Mapping[str, Any], status: int) -> None:
        response = await client.post(TEXT, json=body)
        if response.status_code != status:
            raise WrongAnswer(response.text)

    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        for turn in range(ROUNDS):
            async with asyncio.TaskGroup() as group:
                for slot in range(SLOTS):
                    prompt = [1000 + ROUNDS * slot + turn, *([42] * (SLOT_CONTEXT - 10))]
                    group.create_task(send(client, {"prompt": prompt, "max_tokens": 8, "ignore_eos": True}, 200))
                for _ in range(clients):
                    group.create_task(send(client, too_long, 400))


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the clients and return the report."""
    samples: list[Sample] = []
    with own_server(arguments, SLOTS, SLOT_CONTEXT, *CACHE) as server:
        await fill(server, arguments.clients)
        began = time.monotonic()
        end = 60 * arguments.minutes

        async def watch() -> None:
            while True:
                at, size = time.monotonic() - began, server.memory()["rss_mib"]
                if not samples or at // 60 > samples[-1][0] // 60:
                    print(f"{at:.0f} s: {size:.1f} MiB", file=sys.stderr, flush=True)
                samples.append((at, size))
                await asyncio.sleep(SAMPLE_SECONDS)

        watcher = asyncio.create_task(watch())
        counts = await send_mixture(
            server.url, arguments.seed, arguments.clients, lambda begun: time.monotonic() - began < end
        )
        watcher.cancel()
    settled = [sample for sample in samples if sample[0] >= end * arguments.warm_up]
    rate, bound = slope(settled)
    return {
        "machine": machine(),
        "versions": versions(),
        "settings": {"model": arguments.model.name, "minutes": arguments.minutes, "clients": arguments.clients},
        "requests": {"all": counts.total(), **counts},
        "rss_mib": {
            "first": samples[0][1],
            "settled": settled[0][1],
            "last": samples[-1][1],
            "highest": max(size for _, size in samples),
        },
        "slope_mib_per_hour": {"estimate": rate, "low": rate - bound, "high": rate + bound},
        "passed": rate - bound <= arguments.allowed,
    }


def main() -> None:
    """Measure, print and set the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the time that is not looked at")
    parser.add_argument("--allowed", type=float, default=5, help="MiB an hour")
    print_and_exit(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
