"""Requests of all kinds, well-formed and not, as many clients send them at once; each knows what its answer must be."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = ("river", "stone", "cloud", "apple", "house", "green", "seven", "music", "light", "garden", "winter", "paper")
LONG = 400
"""Tokens of an answer that nobody waits for."""

BAD: tuple[tuple[str, Any], ...] = (
    (CHAT, {"messages": []}),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "temperature": -1}),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "n": 1000, "stream": True}),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "top_logprobs": 3}),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object"}}),
    (TEXT, {"prompt": [-1, 5]}),
    (TEXT, {"prompt": "x " * 100_000, "stream": True}),
    (TEXT, {}),
)

Send = Callable[[httpx.AsyncClient, random.Random], Awaitable[str]]


class WrongAnswer(Exception):
    """A server answered a request of the mixture in another way than it must."""


async def whole(client: httpx.AsyncClient, rng: random.Random) -> str:
    """A conversation, answered at once; now and then several answers."""
    n = rng.choice((1, 1, 2))
    answer = _checked(await client.post(CHAT, json={**_conversation(rng), "n": n}))
    _expect(len(answer["choices"]) == n, answer)
    return "chat"


async def seeded(client: httpx.AsyncClient, rng: random.Random) -> str:
    """The same text twice, for the same seed; the second one streamed."""
    body = {**_conversation(rng), "seed": rng.randrange(1000)}
    text = _checked(await client.post(CHAT, json=body))["choices"][0]["message"]["content"]
    chunks = [chunk async for chunk in _stream(client, CHAT, body)]
    streamed = "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])
    _expect(streamed == text, (streamed, text))
    return "chat, chat"


async def logprobs(client: httpx.AsyncClient, rng: random.Random) -> str:
    """Log probabilities, one for each token."""
    body = {**_conversation(rng), "logprobs": True, "top_logprobs": rng.randrange(6)}
    answer = _checked(await client.post(CHAT, json=body))
    entries = answer["choices"][0]["logprobs"]["content"]
    _expect(len(entries) == answer["usage"]["completion_tokens"], answer)
    return "chat"


async def streamed_text(client: httpx.AsyncClient, rng: random.Random) -> str:
    """A text completion as a stream with its usage."""
    body = {"prompt": _words(rng, 30), "max_tokens": rng.randrange(2, 10), "stop": ["river"]}
    chunks = [chunk async for chunk in _stream(client, TEXT, {**body, "stream_options": {"include_usage": True}})]
    _expect(chunks[-1]["usage"]["completion_tokens"] <= body["max_tokens"], chunks[-1])
    return "streamed text"


async def whole_text(client: httpx.AsyncClient, rng: random.Random) -> str:
    """A text completion with a sampler that keeps state."""
    body = {"prompt": _words(rng, 30), "max_tokens": rng.randrange(2, 10), "mirostat": 2, "dry_multiplier": 0.8}
    _checked(await client.post(TEXT, json=body))
    return "text"


async def cancelled(client: httpx.AsyncClient, rng: random.Random) -> str:
    """A client that reads a little of a long answer and leaves."""
    body = {**_conversation(rng), "max_tokens": LONG, "ignore_eos": True}
    read = left = rng.randrange(1, 5)
    async for _ in _stream(client, CHAT, body):
        left -= 1
        if not left:
            break
    _expect(not left, "the stream ended early")
    return "cancelled" if read > 1 else "cancelled early"  # the first chunk comes before there is a slot


async def bad(client: httpx.AsyncClient, rng: random.Random) -> str:
    """Something that must be refused."""
    path, body = rng.choice((*BAD, (CHAT, None)))
    content = b'{"messages": [' if body is None else json.dumps(body).encode()
    response = await client.post(path, content=content)
    _expect(response.status_code == 400 and "error" in response.json(), response.text)
    return "refused"


async def look(client: httpx.AsyncClient, rng: random.Random) -> str:
    """Somebody who watches the server."""
    response = await client.get(rng.choice(("/health", "/slots", "/v1/models", "/v1/cache/stats")))
    _expect(response.status_code in (200, 503) and response.json(), response.text)
    return "looked"


KINDS: tuple[Send, ...] = (whole, whole, seeded, logprobs, streamed_text, whole_text, cancelled, bad, look)


async def send_mixture(url: str, seed: int, clients: int, go_on: Callable[[int], bool]) -> Counter[str]:
    """Send requests from `clients` at once, each a new kind of connection now and then, while `go_on`, which is asked
    with the number of those begun, says so. Returns how many there were of each kind. Raises WrongAnswer.
    """
    counts: Counter[str] = Counter()
    begun = 0

    async def client(number: int) -> None:
        nonlocal begun
        rng = random.Random(f"{seed} {number}")
        while go_on(begun):
            # A connection that was left in the middle of a stream is closed with its client.
            async with httpx.AsyncClient(base_url=url, timeout=300) as connected:
                for _ in range(rng.randrange(1, 6)):
                    if not go_on(begun):
                        return
                    begun += 1
                    counts.update((await rng.choice(KINDS)(connected, rng)).split(", "))

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    return counts


def _conversation(rng: random.Random) -> dict[str, Any]:
    """Some of them begin alike, so that the prompt cache has hits."""
    system = f"You are a helpful assistant who likes the {WORDS[rng.randrange(3)]}. " * 3
    messages = [{"role": "system", "content": system}, {"role": "user", "content": _words(rng, 10)}]
    return {"messages": messages, "max_tokens": rng.randrange(1, 9), "temperature": rng.choice((0, 0.7, 1.2))}


def _words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, most)))


async def _stream(client: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        if response.is_error:
            raise WrongAnswer((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[len("data: ") :])
                reasons = [choice["finish_reason"] for choice in chunk["choices"]]
                _expect("error" not in reasons, chunk)
                yield chunk


def _checked(response: httpx.Response) -> dict[str, Any]:
    _expect(response.status_code == 200, response.text)
    return response.json()


def _expect(condition: object, shown: object) -> None:
    if not condition:
        raise WrongAnswer(str(shown)[:500])
