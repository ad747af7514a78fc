"""Kinds of checkpoints through the real server, with tiny random weights."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.server import ServerProcess, server
from tests.models import tiny

CONFIG = {**tiny.CONFIG, "max_position_embeddings": 4096}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A Hugging Face folder without a chat template."""
    path = tiny.write_folder(tmp_path_factory.mktemp("models") / "tiny-llama", CONFIG)
    with server("--model", path, "--prefill-chunk-size", "16") as running:
        yield running


def complete(running: ServerProcess, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 24, **fields}
    response = httpx.post(f"{running.url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_folder_and_a_gguf_file_of_the_same_weights_say_the_same(folder: ServerProcess, tmp_path: Path) -> None:
    assert folder.health()["model"] == "tiny-llama"
    wanted = complete(folder, "hello world 123")["choices"][0]["text"]
    assert wanted
    with server("--model", tiny.write_gguf(tmp_path / "tiny.F32.gguf", CONFIG)) as gguf:
        assert complete(gguf, "hello world 123")["choices"][0]["text"] == wanted


def test_without_a_template_chat_is_refused_and_completions_work(folder: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    response = httpx.post(f"{folder.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert "--chat-template-file" in response.json()["error"]["message"]


def test_many_at_once_get_what_each_gets_alone(folder: ServerProcess) -> None:
    """Sixteen clients on four slots, prompts of very different lengths, in chunks, seeded and greedy."""
    wishes: list[tuple[str, dict[str, Any]]] = [
        ("hello world " * (1 + i * i % 23), {"temperature": 1.0 * (i % 2), "seed": i, "max_tokens": 5 + i * 7 % 40})
        for i in range(16)
    ]
    alone = [complete(folder, prompt, **fields) for prompt, fields in wishes]
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        together = list(pool.map(lambda wish: complete(folder, wish[0], **wish[1]), wishes))
    assert [a["choices"][0]["text"] for a in together] == [a["choices"][0]["text"] for a in alone]
    counts = [[answer["usage"]["completion_tokens"] for answer in answers] for answers in (together, alone)]
    assert counts[0] == counts[1]


def test_the_queue_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf", CONFIG)
    with server("--model", path, "--parallel", "1", "--max-queue-depth", "2") as running:

        def ask(_: int) -> int:
            body = {"prompt": "hello", "max_tokens": 300, "temperature": 0, "stream": True}
            with httpx.stream("POST", f"{running.url}/v1/completions", json=body, timeout=60) as response:
                response.read()
                return response.status_code

        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            statuses = list(pool.map(ask, range(12)))
        assert set(statuses) <= {200, 503}
        assert statuses.count(503) >= 1
        assert statuses.count(200) >= 3
        assert ask(0) == 200, "nothing is left taken"
