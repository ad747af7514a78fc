"""The prompt cache as requests see it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.caching import conversation, wants_cache
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.config import CacheConfig, ServerConfig

from ..stub import Served, frames, network, run, says, serving

PROMPT = "A prompt that is long enough to be worth keeping, for others that begin the same. "
OFF = ServerConfig(cache=CacheConfig(cache_prompt=False))


def fields(**values: Any) -> GenerationFields:
    return msgspec.convert(values, GenerationFields)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, True),
        ({"cache_prompt": None}, True),
        ({"cache_prompt": True}, True),
        ({"cache_prompt": False}, False),
        ({"extra_body": {"cache_prompt": False}}, False),
        ({"extra_body": {"cache_prompt": None}}, True),
        ({"cache_prompt": True, "extra_body": {"cache_prompt": False}}, True),
        ({"cache_prompt": False, "extra_body": {"cache_prompt": True}}, False),
    ],
)
def test_a_request_can_opt_out_in_either_place(body: dict[str, Any], wanted: bool) -> None:
    assert wants_cache(fields(**body)) is wanted


@pytest.mark.parametrize("value", [0, 1, "false", {}])
def test_another_type_is_refused(value: Any) -> None:
    with pytest.raises(ApiError, match=r"extra_body\.cache_prompt must be true or false"):
        wants_cache(fields(extra_body={"cache_prompt": value}))
    with pytest.raises(msgspec.ValidationError):
        fields(cache_prompt=value)


def test_a_conversation_is_named_by_its_key_else_its_user() -> None:
    named = [
        conversation(fields(**body))
        for body in (
            {"prompt_cache_key": "a"},
            {"prompt_cache_key": "a", "user": "b"},
            {"prompt_cache_key": "", "user": "a"},
            {"user": "a"},
            {},
            {"prompt_cache_key": "", "user": ""},
        )
    ]
    assert named[0] == named[1]
    assert named[2] == named[3]
    assert named[4] == named[5] == ""
    assert len(set(named)) == 3


async def cached(served: Served, prompt: str, key: str = "", **body: Any) -> int:
    headers = {"Authorization": key} if key else {}
    response = await served.http.post("/v1/completions", json={"prompt": prompt, **body}, headers=headers)
    assert response.status_code == 200
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_usage_tells_what_was_cached_streamed_and_whole() -> None:
    async def work() -> None:
        async with serving() as served:
            assert await cached(served, PROMPT) == 0
            again = len(PROMPT)  # a start token more, a last token less
            assert await cached(served, PROMPT) == again
            assert await cached(served, PROMPT, n=2) == again
            streamed = await served.complete(PROMPT, stream=True, stream_options={"include_usage": True})
            assert frames(streamed.text)[-1]["usage"] == {
                "prompt_tokens": again + 1,
                "completion_tokens": 6,
                "total_tokens": again + 7,
                "prompt_tokens_details": {"cached_tokens": again},
            }
            chats = [(await served.chat(PROMPT)).json()["usage"] for _ in range(2)]
            assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in chats] == [
                0,
                chats[1]["prompt_tokens"] - 1,
            ]

    run(work())


def test_without_a_cache_usage_does_not_speak_of_it() -> None:
    async def work() -> None:
        async with serving(config=OFF) as served:
            for _ in range(2):
                usage = (await served.complete(PROMPT, cache_prompt=True)).json()["usage"]
                assert usage.keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}

    run(work())


@pytest.mark.parametrize("opt_out", [{"cache_prompt": False}, {"extra_body": {"cache_prompt": False}}])
def test_who_opts_out_finds_and_leaves_nothing(opt_out: dict[str, Any]) -> None:
    async def work() -> None:
        async with serving() as served:
            assert await cached(served, PROMPT, **opt_out) == 0
            assert await cached(served, PROMPT) == 0
            assert await cached(served, PROMPT, **opt_out) == 0
            refused = await served.complete(PROMPT, extra_body={"cache_prompt": "no"})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "extra_body.cache_prompt")

    run(work())


def test_keys_do_not_see_each_other_s_prompts() -> None:
    async def work() -> None:
        async with serving(says("Hello!"), network(api_keys=("one", "two"))) as served:
            assert await cached(served, PROMPT, "one") == 0
            assert await cached(served, PROMPT, "two") == 0
            assert await cached(served, PROMPT, "Bearer one") == len(PROMPT)

    run(work())
