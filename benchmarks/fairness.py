"""A long prompt beside running streams: how long they pause, and when a short prompt behind it gets its turn.

Four streams run; then a long prompt comes, and right after it a short one. While the long one is read, the streams get
their tokens between its pieces, and the short one waits for its end. With C pieces, G decode steps between two of them,
a step of D and a piece of P seconds the scheduler promises that the long prompt is read after C * (G * D + P). D is the
median gap of the streams in that time and P what the longest gap has more. The exit status is 1 when that is broken, or
when a stream paused for longer than `--gap`. Prints one JSON document.

    python -m benchmarks.fairness --model smollm2.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import httpx

from benchmarks.client import Stream, percentile, prompt_text, stream_completion
from benchmarks.own_server import make_parser, own_server, print_and_exit
from benchmarks.serving import machine, versions

_STREAMS = 4
_WINDOW = 8192
_GRANT_INTERVAL = 16
_SHORT_WORDS = 20
_STREAM_TOKENS = 1500
_CALM_SECONDS = 1.0
_TIMEOUT = 600.0


def body(prompt: str, new_tokens: int) -> dict[str, Any]:
    """A request that runs to its budget and leaves nothing in the prompt cache."""
    return {
        "prompt": prompt,
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }


def gaps_between(streams: Sequence[Stream], begin: float, end: float) -> list[float]:
    """The gaps of all streams that touch the time from `begin` to `end`."""
    return [
        later - earlier
        for stream in streams
        for earlier, later in zip(stream.arrivals, stream.arrivals[1:], strict=False)
        if later > begin and earlier < end
    ]


def judge(
    streams: Sequence[Stream], long: Stream, short: Stream, alone: Sequence[Stream], pieces: int, most_gap: float
) -> dict[str, Any]:
    """Figures of one turn, in seconds, and whether what was promised was kept.

    alone: the long and the short prompt on an idle server.
    """
    first = long.arrivals[0]
    calm = gaps_between(streams, long.sent - _CALM_SECONDS, long.sent)
    gaps = gaps_between(streams, long.sent, first)
    step, longest = statistics.median(gaps), max(gaps)
    bound = pieces * (_GRANT_INTERVAL * step + longest - step)
    # Its own reading and first token come on top, beside the other rows.
    most_wait = bound + alone[1].time_to_first_token + longest
    return {
        "passed": longest <= most_gap and long.time_to_first_token <= most_wait and _wait(long, short) <= most_wait,
        "long_prompt_tokens": long.prompt_tokens,
        "pieces": pieces,
        "gap_before_median": statistics.median(calm),
        "gap_before_longest": max(calm),
        "gap_median": step,
        "gap_p95": percentile(gaps, 95),
        "gap_longest": longest,
        "bound": bound,
        "long_first_token": long.time_to_first_token,
        "short_first_token": short.time_to_first_token,
        "long_first_token_alone": alone[0].time_to_first_token,
        "short_first_token_alone": alone[1].time_to_first_token,
    }


def _wait(long: Stream, short: Stream) -> float:
    """From the arrival of the long prompt on."""
    return short.arrivals[0] - long.sent


async def pieces_read(client: httpx.AsyncClient) -> int:
    """How many pieces of prompts the server has read so far."""
    return (await client.get("/health")).json()["observability"]["prefill_chunks_processed"]


async def turn(client: httpx.AsyncClient, number: int, words: int, most_gap: float) -> dict[str, Any]:
    """Four streams, then the long prompt and the short one behind it."""
    prompts = body(prompt_text(f"Long {number}", words), 2), body(prompt_text(f"Short {number}", _SHORT_WORDS), 2)
    alone = [await stream_completion(client, prompt) for prompt in prompts]
    running = [
        asyncio.create_task(stream_completion(client, body(prompt_text(f"Stream {number}.{i}", 30), _STREAM_TOKENS)))
        for i in range(_STREAMS)
    ]
    while (await client.get("/health")).json()["observability"]["current_batch_size"] < _STREAMS:
        await asyncio.sleep(0.05)
    await asyncio.sleep(_CALM_SECONDS)
    read_before = await pieces_read(client)
    long = asyncio.create_task(stream_completion(client, prompts[0]))
    while (await client.get("/health")).json()["batch"]["active_sequences"] <= _STREAMS:
        await asyncio.sleep(0.01)
    short = await stream_completion(client, prompts[1])
    pieces = await pieces_read(client) - read_before - 1  # that one was the short prompt
    figures = judge(await asyncio.gather(*running), await long, short, alone, pieces, most_gap)
    print(
        f"longest gap {figures['gap_longest']:.3f} s, first token of the long prompt after "
        f"{figures['long_first_token']:.2f} s, of the short one {figures['short_first_token']:.2f} s, "
        f"bound {figures['bound']:.2f} s",
        file=sys.stderr,
    )
    return figures


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run all turns and return the report."""
    flags = ("--prefill-grant-interval", str(_GRANT_INTERVAL), *arguments.flags.split())
    with own_server(arguments, _STREAMS + 2, _WINDOW, *flags) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=_TIMEOUT) as client:
            turns = [await turn(client, number, arguments.words, arguments.gap) for number in range(arguments.repeat)]
    return {
        "machine": machine(),
        "versions": versions(),
        "passed": all(figures["passed"] for figures in turns),
        "median": {key: statistics.median(figures[key] for figures in turns) for key in turns[0] if key != "passed"},
        "turns": turns,
    }


def main() -> None:
    """Measure, print and set the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--words", type=int, default=6000, help="of the long prompt: about as many tokens")
    parser.add_argument("--flags", default="", help="more flags of the server, in one word")
    parser.add_argument("--gap", type=float, default=0.5, help="longest pause of a stream, in seconds")
    parser.add_argument("--repeat", type=int, default=3)
    print_and_exit(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
