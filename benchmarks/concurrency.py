"""Shows that requests running together give the texts they give alone.

Each prompt runs alone first, greedily, then all of them at once. A batch adds up its products in another order than a
single row, so the last bits of the logits may differ, and where the two best tokens are that close either may win. The
program therefore compares token by token, and looks at the first difference of each prompt: in the run alone the two
best log probabilities have to be nearly equal there. Prints one JSON document; the exit status is 1 when a difference
is not such a near tie.

    python -m benchmarks.concurrency --model smollm2.gguf
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from benchmarks.own_server import make_parser, own_server, print_and_exit

NEAR_TIE = 1e-3
"""Largest difference of two log probabilities that counts as equal."""

QUESTIONS = (
    "Why is the sky blue?",
    "Name three rivers in Europe and say where each of them ends.",
    "Write one sentence about a lighthouse keeper who is afraid of the dark.",
    "What is 17 times 23? Show how you get there.",
    "Explain to a child what a battery does.",
    "List the months that have thirty days.",
    "Give me a short recipe for tomato soup, with amounts, for four people who like it hot.",
    "Translate into French: The train leaves at seven and we are late.",
)

_REQUEST_TIMEOUT = 600.0
_SLOT_CONTEXT = 512

Entry = Mapping[str, Any]
"""One token of a chat completion's log probabilities, with the two best alternatives."""


async def generate(client: httpx.AsyncClient, question: str, new_tokens: int) -> list[Entry]:
    """The tokens of a greedy answer. Raises httpx.HTTPStatusError for a refusal."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": new_tokens,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
        "cache_prompt": False,
    }
    response = await client.post("/v1/chat/completions", json=body)
    if response.is_error:
        raise httpx.HTTPStatusError(response.text, request=response.request, response=response)
    return response.json()["choices"][0]["logprobs"]["content"]


def first_difference(alone: Sequence[Entry], together: Sequence[Entry]) -> int | None:
    """Position of the first token that differs, a missing one included; None when there is none."""
    for position, (left, right) in enumerate(zip(alone, together, strict=False)):
        if left["bytes"] != right["bytes"]:
            return position
    return None if len(alone) == len(together) else min(len(alone), len(together))


def gap_of_best_two(alone: Sequence[Entry], together: Sequence[Entry], position: int) -> float:
    """How far apart the two best log probabilities are at `position`.

    Taken from the run alone. Where that one has ended, the end-of-sequence token was its best, and the run that went
    on shows the same two from the other side.
    """
    entry = alone[position] if position < len(alone) else together[position]
    best, second = entry["top_logprobs"][:2]
    return abs(best["logprob"] - second["logprob"])


def compare(question: str, alone: Sequence[Entry], together: Sequence[Entry]) -> dict[str, Any]:
    """The report on one prompt."""
    position = first_difference(alone, together)
    report: dict[str, Any] = {"question": question, "tokens": len(alone), "same": position is None, "passed": True}
    if position is not None:
        gap = gap_of_best_two(alone, together, position)
        report |= {
            "passed": gap < NEAR_TIE,
            "first_difference": position,
            "gap": gap,
            "alone": "".join(entry["token"] for entry in alone[position:]),
            "together": "".join(entry["token"] for entry in together[position:]),
        }
    return report


async def run(url: str, new_tokens: int) -> list[dict[str, Any]]:
    """Ask every question alone, then all at once, and compare."""
    async with httpx.AsyncClient(base_url=url, timeout=_REQUEST_TIMEOUT) as client:
        alone = [await generate(client, question, new_tokens) for question in QUESTIONS]
        together = await asyncio.gather(*(generate(client, question, new_tokens) for question in QUESTIONS))
    return [compare(*answers) for answers in zip(QUESTIONS, alone, together, strict=True)]


def main() -> None:
    """Compare, print and set the exit status."""
    parser = make_parser(__doc__)
    parser.add_argument("--new-tokens", type=int, default=48)
    arguments = parser.parse_args()
    with own_server(arguments, len(QUESTIONS), _SLOT_CONTEXT) as server:
        reports = asyncio.run(run(server.url, arguments.new_tokens))
    passed = all(report["passed"] for report in reports)
    same = sum(report["same"] for report in reports)
    print_and_exit({"passed": passed, "same": same, "of": len(reports), "prompts": reports})


if __name__ == "__main__":
    main()
