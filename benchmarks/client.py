"""Reads streamed completions and keeps the times; the statistics the benchmarks report."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

_FILLER = (
    "the quick brown river runs past old stone houses while people walk slowly home under a warm evening sky and "
    "children play in small green gardens near the long road that leads over two hills to the quiet sea where "
    "boats wait for wind and birds circle above the white cliffs"
)


@dataclass(frozen=True, slots=True)
class Stream:
    """One streamed completion. Times in seconds of one monotonic clock."""

    sent: float
    arrivals: tuple[float, ...]
    """When each piece of text came in."""
    prompt_tokens: int
    completion_tokens: int

    @property
    def time_to_first_token(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first one; 0 for an answer of one piece."""
        span = self.arrivals[-1] - self.arrivals[0]
        return (self.completion_tokens - 1) / span if span > 0 else 0.0

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [later - earlier for earlier, later in zip(self.arrivals[:-1], self.arrivals[1:], strict=True)]


def prompt_text(name: str, words: int) -> str:
    """A prompt of `words` common words behind a head that no other name shares, so that no prefix cache helps."""
    filler = itertools.cycle(_FILLER.split())
    return f"{name}: " + " ".join(itertools.islice(filler, words))


async def stream_completion(client: httpx.AsyncClient, body: Mapping[str, Any]) -> Stream:
    """Send `body` to `/v1/completions` as a stream and read it to its end.

    Raises httpx.HTTPStatusError for a refusal and RuntimeError for a stream without text or usage.
    """
    arrivals: list[float] = []
    usage: dict[str, int] | None = None
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    sent = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=request) as response:
        if response.is_error:
            await response.aread()
            raise httpx.HTTPStatusError(response.text, request=response.request, response=response)
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            arrived = time.perf_counter()
            chunk = json.loads(line[len("data: ") :])
            if any(choice.get("text") for choice in chunk.get("choices", ())):
                arrivals.append(arrived)
            usage = chunk.get("usage") or usage
    if not arrivals or usage is None:
        raise RuntimeError("the stream ended without text or without usage")
    return Stream(sent, tuple(arrivals), usage["prompt_tokens"], usage["completion_tokens"])


async def stream_together(client: httpx.AsyncClient, bodies: Sequence[Mapping[str, Any]]) -> list[Stream]:
    """Send all of `bodies` at the same time."""
    return await asyncio.gather(*(stream_completion(client, body) for body in bodies))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `values` lie, interpolated between neighbours; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarize(streams: Sequence[Stream]) -> dict[str, float]:
    """Figures of one round of concurrent streams.

    The prefill rate counts all prompts until the last first token; the aggregate rate counts all generated tokens
    from the first request to the last token, prefill included.
    """
    start = min(stream.sent for stream in streams)
    end = max(stream.arrivals[-1] for stream in streams)
    last_first = max(stream.arrivals[0] for stream in streams)
    gaps = [gap for stream in streams for gap in stream.gaps]
    return {
        "ttft_ms": 1e3 * statistics.median(stream.time_to_first_token for stream in streams),
        "prefill_tokens_per_s": sum(stream.prompt_tokens for stream in streams) / (last_first - start),
        "decode_tokens_per_s": statistics.median(stream.decode_rate for stream in streams),
        "aggregate_tokens_per_s": sum(stream.completion_tokens for stream in streams) / (end - start),
        "gap_p50_ms": 1e3 * percentile(gaps, 50),
        "gap_p95_ms": 1e3 * percentile(gaps, 95),
        "gap_max_ms": 1e3 * max(gaps, default=0.0),
        "prompt_tokens": sum(stream.prompt_tokens for stream in streams),
        "completion_tokens": sum(stream.completion_tokens for stream in streams),
    }


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure over repeated rounds."""
    return {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}


def ratios(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float]:
    """Each figure of ours divided by theirs; figures that are 0 there are left out."""
    return {key: ours[key] / theirs[key] for key in ours if theirs.get(key)}
