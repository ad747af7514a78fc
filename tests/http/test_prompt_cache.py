"""The prompt cache and memory limits of the real server with the default model."""

from __future__ import annotations

import concurrent.futures
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from .server import ServerProcess, server

pytestmark = pytest.mark.real_model
WORDS = ("river", "stone", "cloud", "apple", "house", "green", "seven", "music", "light", "garden", "winter", "paper")
TOKEN_BYTES = 30 * 3 * 64 * 2 * 2
"""Keys and values of a token: layers, heads, dimensions, the two of them, bytes."""


def story(seed: int, words: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def chat(*contents: str) -> list[dict[str, str]]:
    """A conversation: system, user, assistant, user, ..."""
    return [
        {"role": "system" if i == 0 else ("assistant", "user")[i % 2], "content": content}
        for i, content in enumerate(contents)
    ]


def ask(running: ServerProcess, messages: list[dict[str, str]], key: str = "", **fields: Any) -> tuple[str, int]:
    """An answer, and how much of its prompt was cached."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 12, **fields}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    response = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    assert response.status_code == 200, response.text
    answer = response.json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def stats(running: ServerProcess) -> dict[str, Any]:
    return httpx.get(f"{running.url}/v1/cache/stats", timeout=60).json()


@pytest.fixture(scope="module")
def running(default_model_path: Path) -> Iterator[ServerProcess]:
    with server("--model", default_model_path, "--prompt-cache-capacity-bytes", "32M") as process:
        yield process


@pytest.fixture(autouse=True)
def empty(request: pytest.FixtureRequest) -> None:
    if "running" in request.fixturenames:
        running: ServerProcess = request.getfixturevalue("running")
        httpx.post(f"{running.url}/v1/cache/reset", timeout=60).raise_for_status()


def test_a_conversation_goes_on_where_it_was_and_says_what_it_says_without_a_cache(running: ServerProcess) -> None:
    turns = [story(1, 200), "Name two colors.", "", "And two animals.", "", "Which of them is green?"]
    for last in (2, 4, 6):
        messages = chat(*turns[:last])
        cold, cached = ask(running, messages, cache_prompt=False)
        assert cached == 0
        text, cached = ask(running, messages)
        assert text == cold
        assert cached > 200 if last > 2 else cached == 0
        if last < 6:
            turns[last] = text
    assert stats(running)["entries"] == 1, "each turn takes the place of the one before"


def test_a_prompt_its_continuation_and_the_prompt_again(running: ServerProcess) -> None:
    a, b = chat(story(2, 150), "Hello!"), chat(story(2, 150), "Hello! " + story(3, 90))
    cold = [ask(running, messages, cache_prompt=False)[0] for messages in (a, b, a)]
    assert [ask(running, messages)[0] for messages in (a, b, a)] == cold
    assert [ask(running, messages)[0] for messages in (b, a, b)] == [cold[1], cold[0], cold[1]]


def test_many_at_once_with_one_beginning_say_what_each_says_alone(running: ServerProcess) -> None:
    system = story(4, 250)
    questions = [chat(system, f"Repeat after me: {word}") for word in WORDS[:8]]
    cold = [ask(running, question, cache_prompt=False)[0] for question in questions]
    ask(running, questions[0])
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        together = list(pool.map(lambda question: ask(running, question), questions))
    assert [text for text, _ in together] == cold
    assert all(cached > 250 for _, cached in together)


def test_a_stream_tells_what_was_cached(running: ServerProcess) -> None:
    body = {
        "prompt": story(5, 60),
        "max_tokens": 2,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    cached = []
    for extra in ({}, {}, {"extra_body": {"cache_prompt": False}}):
        response = httpx.post(f"{running.url}/v1/completions", json={**body, **extra}, timeout=60)
        cached.append('"cached_tokens":0' not in response.text)
    assert cached == [False, True, False]


def test_memory_stays_within_the_capacity(running: ServerProcess) -> None:
    process = psutil.Process(running.process.pid)
    sizes = []
    for round_number in range(3):
        for i in range(8):
            ask(running, chat(story(100 + 8 * round_number + i, 250), "Hi"), max_tokens=1)
        sizes.append(process.memory_info().rss)
        now = stats(running)
        assert 0 < now["bytes"] <= now["capacity_bytes"] == 32 << 20
        assert now["kv_bytes_used"] == now["bytes"]
    assert stats(running)["evictions_lru"] > 12
    assert sizes[-1] - sizes[0] < 30e6, sizes


def test_reset_is_idempotent_and_tells_what_was_there(running: ServerProcess) -> None:
    ask(running, chat(story(6, 60), "Hi"))
    freed = httpx.post(f"{running.url}/v1/cache/reset", timeout=60).json()
    assert freed["entries"] == 1
    assert freed["bytes"] >= 60 * TOKEN_BYTES
    again = httpx.post(f"{running.url}/v1/cache/reset", timeout=60).json()
    assert (again["entries"], again["bytes"], again["kv_bytes_used"]) == (0, 0, 0)
    assert ask(running, chat(story(6, 60), "Hi"))[1] == 0


def test_keys_do_not_share(default_model_path: Path) -> None:
    with server("--model", default_model_path, "--api-key", "one,two") as running:
        messages = chat(story(7, 60), "Hi")
        assert ask(running, messages, "one")[1] == 0
        assert ask(running, messages, "two")[1] == 0
        assert ask(running, messages, "one")[1] > 60
        assert httpx.get(f"{running.url}/v1/cache/stats").status_code == 401


def test_switched_off_it_keeps_nothing(default_model_path: Path) -> None:
    with server("--model", default_model_path, environment={"LLAMA_ARG_CACHE_PROMPT": "off"}) as running:
        body = {"prompt": story(8, 60), "max_tokens": 2}
        for _ in range(2):
            response = httpx.post(f"{running.url}/v1/completions", json=body, timeout=60)
            assert "prompt_tokens_details" not in response.json()["usage"]
        assert (stats(running)["enabled"], stats(running)["kv_bytes_used"]) == (False, 0)


def test_a_small_budget_makes_requests_wait_and_refuses_what_never_fits(
    default_model_path: Path, running: ServerProcess
) -> None:
    """Six answers where memory holds about three; then a prompt that is longer than all of it."""
    budget = 12 * 64 * TOKEN_BYTES
    questions = [chat(story(20 + i, 120), "Tell me a story.") for i in range(6)]
    alone = [ask(running, question, max_tokens=80)[0] for question in questions]
    with server("--model", default_model_path, "--kv-cache-budget", str(budget), "--parallel", "4") as small:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            together = list(pool.map(lambda question: ask(small, question, max_tokens=80)[0], questions))
        assert together == alone
        now = stats(small)
        assert now["kv_bytes_used"] <= now["kv_bytes_budget"] == budget
        for stream in (False, True):
            body = {"messages": chat(story(9, 900), "Hi"), "stream": stream}
            refused = httpx.post(f"{small.url}/v1/chat/completions", json=body, timeout=60)
            error = refused.json()["error"]
            assert (refused.status_code, error["type"]) == (503, "request_memory_budget_exceeded")
            assert error["estimated_bytes"] > error["budget_bytes"] == budget
        text, _ = ask(small, questions[0], max_tokens=80)
        assert text == alone[0]


def test_a_budget_for_nothing_stops_the_start(default_model_path: Path) -> None:
    command = [sys.executable, "-m", "mlxcel.cli", "serve", "--port", "0", "--model", str(default_model_path)]
    ended = subprocess.run([*command, "--kv-cache-budget", "1M"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "--kv-cache-budget 1048576 does not hold 512 tokens" in ended.stdout + ended.stderr


def test_a_full_context_shifts_on_request(default_model_path: Path) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 540, "temperature": 0}
    for flags, tokens in (("--context-shift", 540), ("--no-context-shift", 512 - 4)):
        with server("--model", default_model_path, "--ctx-size", "512", "--parallel", "1", flags) as running:
            answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=120).json()
            assert answer["usage"]["completion_tokens"] == tokens
            assert answer["choices"][0]["finish_reason"] == "length"


def test_an_answer_outgrows_what_is_kept_of_it(default_model_path: Path, running: ServerProcess) -> None:
    body = {"prompt": "Once upon a time", "max_tokens": 320, "temperature": 0, "ignore_eos": True}
    whole = httpx.post(f"{running.url}/v1/completions", json={**body, "max_tokens": 230}, timeout=120).json()
    with server("--model", default_model_path, "--max-kv-size", "300", "--parallel", "1") as small:
        answer = httpx.post(f"{small.url}/v1/completions", json=body, timeout=120).json()
        assert answer["usage"]["completion_tokens"] == 320
        assert answer["choices"][0]["text"].startswith(whole["choices"][0]["text"])
        assert stats(small)["entries"] == 0
        assert stats(small)["kv_bytes_used"] == 0


def test_a_higher_priority_takes_a_slot_and_the_other_one_goes_on(default_model_path: Path) -> None:
    body = {"messages": chat(story(10, 40), "Count to one hundred."), "temperature": 0}
    body |= {"max_tokens": 400, "ignore_eos": True}
    with server("--model", default_model_path, "--parallel", "1", "--enable-preemption") as running:
        url = f"{running.url}/v1/chat/completions"
        alone = httpx.post(url, json=body, timeout=120).json()["choices"][0]["message"]["content"]
        with httpx.stream(
            "POST", url, json={**body, "stream": True}, headers={"X-Priority": "low"}, timeout=120
        ) as low:
            lines = low.iter_lines()
            next(lines)
            high = {"messages": chat("", "Hi"), "max_tokens": 4}
            assert httpx.post(url, json=high, headers={"X-Priority": "high"}, timeout=120).status_code == 200
            batch: Any = running.health()["batch"]
            # It may be on its way from the queue to the slot.
            assert batch["active_sequences"] + batch["queue_depth"] == 1, "the first one is not done yet"
            parts = [httpx.Response(200, text=line[6:]).json() for line in lines if line.startswith("data: {")]
        text = "".join(choice["delta"].get("content", "") for part in parts for choice in part["choices"])
        assert text == alone
