"""Sampling fields on the default model through the real server."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .server import ServerProcess, server

pytestmark = pytest.mark.real_model
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SONG = "A B C A B C A B C A B C A B C A B"


@pytest.fixture(scope="module")
def running(default_model_path: Path) -> Iterator[ServerProcess]:
    with server("--model", default_model_path, "--ctx-size", "4096") as process:
        yield process


def post(running: ServerProcess, path: str, **fields: Any) -> httpx.Response:
    body = {"max_tokens": 12, "temperature": 0, **fields}
    if path == CHAT:
        content = body.pop("content", "What is the capital of France?")
        body["messages"] = [{"role": "user", "content": content}]
    return httpx.post(f"{running.url}{path}", json=body, timeout=120)


def answer(running: ServerProcess, path: str, **fields: Any) -> dict[str, Any]:
    response = post(running, path, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def complete(running: ServerProcess, prompt: str, **fields: Any) -> str:
    return answer(running, TEXT, prompt=prompt, **fields)["text"]


def token_of(running: ServerProcess, prompt: str, text: str) -> int:
    """The id of the token that continues the prompt, found by banning ids until the text goes away."""
    low, high = 0, 49152
    while high - low > 1:
        middle = (low + high) // 2
        banned = {str(token): -100 for token in range(low, middle)}
        if complete(running, prompt, logit_bias=banned, max_tokens=1) == text:
            low = middle
        else:
            high = middle
    return low


def test_dry_breaks_a_repetition_that_greedy_goes_on_with(running: ServerProcess) -> None:
    assert complete(running, SONG, max_tokens=1) == " C"
    assert complete(running, SONG, max_tokens=1, dry_multiplier=5.0) != " C"
    assert complete(running, SONG, max_tokens=1, dry_multiplier=5.0, dry_allowed_length=50) == " C"
    assert complete(running, SONG, max_tokens=1, dry_multiplier=5.0, dry_sequence_breakers=[" B"]) == " C"
    assert complete(running, SONG, max_tokens=1, dry_multiplier=5.0, dry_penalty_last_n=4) == " C"


def test_penalties_break_it_too(running: ServerProcess) -> None:
    assert complete(running, SONG, max_tokens=1, repetition_penalty=3.0) != " C"
    assert complete(running, SONG, max_tokens=1, repetition_penalty=3.0, repetition_context_size=2) == " C"
    assert complete(running, SONG, max_tokens=1, presence_penalty=2.0) == " C", "the prompt does not count"


def test_a_loop_ends_exactly_when_the_count_is_full(running: ServerProcess) -> None:
    rule = {"min_pattern_size": 1, "max_pattern_size": 8, "min_count": 3}
    ended = answer(running, TEXT, prompt=SONG, max_tokens=60, **rule)
    assert ended["finish_reason"] == "stop"
    assert ended["text"] == (" C A B" * 3)
    free = answer(running, TEXT, prompt=SONG, max_tokens=60, **{**rule, "max_pattern_size": 0})
    assert free["finish_reason"] == "length"
    assert free["text"].startswith(ended["text"])


def test_logit_bias_bans_and_promotes(running: ServerProcess) -> None:
    token = token_of(running, SONG, " C")
    assert complete(running, SONG, max_tokens=1, logit_bias={str(token): False}) != " C"
    assert complete(running, SONG, max_tokens=1, logit_bias=[[token, -100]]) != " C"
    other = "The capital of France is"
    assert complete(running, other, max_tokens=2, logit_bias={str(token): 100}) == " C C"


def test_the_end_may_be_ignored(running: ServerProcess) -> None:
    short = answer(running, CHAT, max_tokens=60)
    assert short["finish_reason"] == "stop"
    on = answer(running, CHAT, max_tokens=60, ignore_eos=True)
    assert on["finish_reason"] == "length"
    assert on["message"]["content"].startswith(short["message"]["content"])


@pytest.mark.parametrize(
    "fields",
    [
        {"top_k": 1},
        {"top_n_sigma": 1e-3},
        {"min_p": 1.0},
        {"top_p": 0.0},
        {"mirostat": 2, "mirostat_tau": 0.0, "mirostat_eta": 0.0},
        {"dynatemp_range": 2.0, "temperature": 1e-3, "dynatemp_exponent": 100.0},
    ],
)
def test_a_filter_at_its_narrowest_is_greedy(running: ServerProcess, fields: dict[str, Any]) -> None:
    for path in (CHAT, TEXT):
        prompt = {"prompt": "The capital of France is"} if path == TEXT else {}
        greedy = answer(running, path, **prompt, temperature=0)
        drawn = answer(running, path, **prompt, **{"temperature": 2.0, "top_k": 0, "seed": 4, **fields})
        assert drawn == greedy


FIELDS: list[dict[str, Any]] = [
    {},
    {"p_less": True},
    {"typical_p": 0.8},
    {"xtc_probability": 0.7, "xtc_threshold": 0.05},
    {"mirostat": 1, "mirostat_tau": 3.0},
    {"mirostat": 2, "mirostat_tau": 3.0},
    {"dynatemp_range": 0.8},
    {"adaptive_target": 0.3},
    {"repetition_penalty": 1.2, "dry_multiplier": 0.8, "top_n_sigma": 2.0},
    {"temperature": 0.0},
]


def test_rows_of_different_settings_say_together_what_they_say_alone(running: ServerProcess) -> None:
    def ask(index: int) -> str:
        fields = {"temperature": 1.0, "seed": 7, "max_tokens": 16, **FIELDS[index]}
        return complete(running, "Once upon a time", **fields)

    alone = [ask(index) for index in range(len(FIELDS))]
    assert len(set(alone)) > len(FIELDS) // 2, "they do make a difference"
    with concurrent.futures.ThreadPoolExecutor(len(FIELDS)) as pool:
        assert list(pool.map(ask, range(len(FIELDS)))) == alone


def test_a_streamed_answer_is_the_whole_one(running: ServerProcess) -> None:
    for fields in FIELDS:
        fields = {"prompt": "Once upon a time", "temperature": 1.0, "seed": 3, "max_tokens": 8, **fields}
        body = post(running, TEXT, **fields, stream=True).text
        streamed = "".join(
            httpx.Response(200, text=line[6:]).json()["choices"][0]["text"]
            for line in body.splitlines()
            if line.startswith("data: {")
        )
        assert streamed == answer(running, TEXT, **fields)["text"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"xtc_threshold": 0.7}, "xtc_threshold"),
        ({"typical_p": 0}, "typical_p"),
        ({"top_n_sigma": -1}, "top_n_sigma"),
        ({"dry_allowed_length": -1}, "dry_allowed_length"),
        ({"mirostat": 5}, "mirostat"),
        ({"seed": -2}, "seed"),
        ({"logit_bias": {"49152": 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"min_count": -1}, "min_count"),
    ],
)
def test_values_out_of_range(running: ServerProcess, fields: dict[str, Any], param: str) -> None:
    for path in (CHAT, TEXT):
        for stream in (False, True):
            response = post(running, path, **{"prompt": "hi"} if path == TEXT else {}, stream=stream, **fields)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param
            assert response.json()["error"]["type"] == "invalid_request_error"


def test_defaults_of_the_server(default_model_path: Path) -> None:
    flags = ("--dry-multiplier", "5", "--temp", "0", "--ignore-eos", "--parallel", "1")
    with server("--model", default_model_path, *flags, environment={"MLXCEL_LOOP_DETECTION": "1,8,3"}) as running:
        assert complete(running, SONG, max_tokens=1, temperature=None) != " C"
        assert complete(running, SONG, max_tokens=1, temperature=None, dry_multiplier=0) == " C"
        ended = answer(running, TEXT, prompt=SONG, max_tokens=60, dry_multiplier=0)
        assert ended["text"] == (" C A B" * 3)
        assert answer(running, CHAT, max_tokens=60, dry_multiplier=0)["finish_reason"] == "length"
        own = answer(running, CHAT, max_tokens=60, dry_multiplier=0, ignore_eos=False)
        assert own["finish_reason"] == "stop"
