"""The default model through the real server, as clients see it."""

from __future__ import annotations

import concurrent.futures
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import OpenAI

from .server import ServerProcess, server

pytestmark = pytest.mark.real_model
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def running(default_model_path: Path) -> Iterator[ServerProcess]:
    with server("--model", default_model_path, "--alias", "smol", "--ctx-size", "4096") as process:
        yield process


@pytest.fixture
def client(running: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{running.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


def ask(client: OpenAI, content: str, **fields: Any) -> str:
    answer = client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": content}], **{"temperature": 0, "max_tokens": 8, **fields}
    )
    return answer.choices[0].message.content or ""


def test_it_knows_the_capital_of_france_streamed_and_whole(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="smol", messages=FRANCE, temperature=0, max_tokens=12)  # type: ignore[arg-type]
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    assert whole.model == "smol"
    stream = client.chat.completions.create(
        model="smol",
        messages=FRANCE,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    streamed = chunks[-1].usage
    assert streamed is not None
    assert whole.usage is not None
    # What the prompt cache knows by now is another matter.
    assert (streamed.prompt_tokens, streamed.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )


def test_budget_and_stop_strings(client: OpenAI) -> None:
    cut = client.chat.completions.create(model="smol", messages=FRANCE, temperature=0, max_tokens=3)  # type: ignore[arg-type]
    assert cut.choices[0].finish_reason == "length"
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 3
    assert ask(client, "What is the capital of France?", stop=["Paris"], max_tokens=12) == "The capital of France is "


def test_text_completion_continues_the_prompt(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": "smol", "prompt": "1, 2, 3, 4, 5, 6,", "temperature": 0, "max_tokens": 2}
    whole = client.completions.create(**fields)
    assert whole.choices[0].text.startswith(" 7")
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**fields, stream=True))
    assert streamed == whole.choices[0].text


def test_logprobs_join_to_the_text(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smol",
        messages=FRANCE,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=6,
        logprobs=True,
        top_logprobs=3,
    )
    entries = answer.choices[0].logprobs
    assert entries is not None
    content = entries.content or []
    assert "".join(entry.token for entry in content) == answer.choices[0].message.content
    assert all(entry.logprob <= 0 and entry.top_logprobs[0].token == entry.token for entry in content)


def test_a_seed_repeats_alone_and_in_company(client: OpenAI) -> None:
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 6}
    alone = ask(client, "Tell me a story.", **fields)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        others = [pool.submit(ask, client, f"Say {number}.", temperature=1.0, max_tokens=20) for number in range(3)]
        assert pool.submit(ask, client, "Tell me a story.", **fields).result() == alone
        assert all(other.result() for other in others)
    assert ask(client, "Tell me a story.", **{**fields, "seed": 12}) != alone


def test_choices_of_one_request(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smol",
        messages=FRANCE,  # type: ignore[arg-type]
        n=2,
        seed=5,
        temperature=1.5,
        max_tokens=6,
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content


def test_eight_at_once_say_what_each_says_alone(client: OpenAI) -> None:
    """Four slots, more clients: every answer is the same to the letter."""
    questions = [
        f"Repeat after me: {word}" for word in ("apple", "house", "water", "seven", "green", "music", "dog", "bread")
    ]
    alone = [ask(client, question, max_tokens=16) for question in questions]
    with concurrent.futures.ThreadPoolExecutor(len(questions)) as pool:
        together = list(pool.map(lambda question: ask(client, question, max_tokens=16), questions))
    assert together == alone


def test_clients_that_vanish_leave_nothing(running: ServerProcess, client: OpenAI) -> None:
    """Thirty open a stream, read one chunk and go, ten at a time."""
    ask(client, "Hi", max_tokens=1)
    process = psutil.Process(running.process.pid)

    def vanish(_: int) -> int:
        body = {"messages": [{"role": "user", "content": "Count to 500."}], "stream": True, "temperature": 0}
        with httpx.stream("POST", f"{running.url}/v1/chat/completions", json=body, timeout=120) as response:
            next(response.iter_bytes())
            return response.status_code

    sizes = []
    for _ in range(3):
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            assert list(pool.map(vanish, range(10))) == [200] * 10
        # The next answer comes only when a slot is free again; afterwards everything is at rest.
        assert ask(client, "Hi", max_tokens=1)
        while (batch := running.health()["batch"])["active_sequences"] or batch["queue_depth"]:  # type: ignore[index]
            pass
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[0] < 30e6, sizes


def test_health_and_models(running: ServerProcess) -> None:
    health = running.health()
    assert (health["status"], health["model"], health["context_size"]) == ("ok", "smol", 1024)
    assert httpx.get(f"{running.url}/v1/models").json()["data"][0]["id"] == "smol"


def test_a_prompt_longer_than_the_context_is_refused(running: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "word " * 1100}], "stream": True}
    response = httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_exits_0(default_model_path: Path, number: int) -> None:
    with (
        server("--model", default_model_path, "--no-warmup") as running,
        httpx.Client(timeout=60) as http,
        http.stream(
            "POST",
            f"{running.url}/v1/completions",
            json={"prompt": "Once upon", "stream": True, "max_tokens": 4, "temperature": 0},
        ) as response,
    ):
        frames = response.iter_lines()
        first = next(frames)
        running.process.send_signal(number)
        rest = [line for line in frames if line]
        assert first.startswith("data: ")
        assert rest[-1] == "data: [DONE]", "a running answer is finished first"
        assert running.process.wait(60) == 0
        output = "".join(running.output)
        assert "Traceback" not in output


def test_start_up_says_what_runs_and_where(running: ServerProcess) -> None:
    output = "".join(running.output)
    for fact in ("smol", ".gguf", "llama", "cpu: ", "4 slots", "1024", running.url):
        assert fact in output, fact


def test_keys_are_asked_for_and_never_shown(default_model_path: Path) -> None:
    with server("--model", default_model_path, "--no-warmup", "--api-key", "sesame-123") as running:
        assert httpx.get(f"{running.url}/v1/models").status_code == 401
        assert httpx.get(f"{running.url}/health").status_code == 200
        good = httpx.get(f"{running.url}/v1/models", headers={"Authorization": "Bearer sesame-123"})
        assert good.status_code == 200
        assert "sesame-123" not in "".join(running.output)
