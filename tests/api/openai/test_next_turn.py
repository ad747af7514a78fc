"""What an answer leaves behind for the next turn: its reasoning, and the state after it."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.api.state import AppState
from mlxcel.config import CacheConfig, ChatConfig, ServerConfig
from mlxcel.engine.cache.storage import Reuse
from tests.engine.scripted import EOS, ScriptedBackend, ScriptedStorage
from tests.engine.test_engine import until

from ..stub import Served, run, says, serving, with_info

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
ASKED = [{"role": "user", "content": "Is water wet, all in all?"}]
FOLLOWING = [*ASKED, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
ANSWER = b"<think>\nhm hm\n</think>\n\nYes."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reuse", "config", "fields", "echoed"),
    [
        (Reuse.WHOLE, ServerConfig(), {}, True),
        (Reuse.BEGINNING, ServerConfig(), {}, False),
        (Reuse.WHOLE, ServerConfig(), {"cache_prompt": False}, False),
        (Reuse.WHOLE, ServerConfig(cache=CacheConfig(cache_prompt=False)), {}, False),
        (Reuse.WHOLE, ServerConfig(chat=ChatConfig(reasoning_echo=0)), {}, False),
    ],
)
def test_reasoning_returns_to_a_conversation_that_comes_without_it(
    stream: bool, reuse: Reuse, config: ServerConfig, fields: dict[str, Any], echoed: bool
) -> None:
    async def work() -> None:
        async with serving(with_info(says(ANSWER), chat_template=TEMPLATE, reuse=reuse), config) as served:
            assert (await served.chat(messages=ASKED, stream=stream, **fields)).is_success
            for preserved in (True, False):
                body = {"messages": FOLLOWING, "preserve_thinking": preserved, **fields}
                prompt = (await served.http.post("/apply-template", json=body)).json()["prompt"]
                assert ("<think>hm hm</think>Yes." in prompt) == (echoed and preserved)

    run(work())


def following_backend() -> ScriptedBackend:
    """Says the same after every prompt, also in a conversation."""

    def follow(fed: list[int]) -> int:
        said = bytes(token for token in fed if token < 256).rpartition(b"assistant: ")[2]
        return ANSWER[len(said)] if len(said) < len(ANSWER) else EOS

    backend = ScriptedBackend(follow=follow, kv=ScriptedStorage(Reuse.WHOLE))  # type: ignore[arg-type]
    return with_info(backend, chat_template=TEMPLATE, reuse=Reuse.WHOLE)


async def cached(served: Served, messages: list[dict[str, str]], **fields: Any) -> int:
    body = (await served.chat(messages=messages, **fields)).json()
    assert body["choices"][0]["message"]["content"] == "Yes."
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.mark.parametrize("preserved", [False, True])
def test_the_next_prompt_begins_after_the_answer(preserved: bool) -> None:
    async def work() -> None:
        async with serving(following_backend(), ServerConfig(cache=CacheConfig(min_prefix=4))) as served:
            fields = {"preserve_thinking": preserved}
            assert await cached(served, ASKED, **fields) == 0
            # After the history, after the answer as it was said, and as it will be written.
            await until(lambda: served.engine.cache_stats().snapshot_inserts == 3)
            thoughts = "<think>hm hm</think>" if preserved else ""
            known = f"user: Is water wet, all in all?\nassistant: {thoughts}Yes.\nuser: "
            assert await cached(served, FOLLOWING, **fields) == 1 + len(known)

    run(work())


@pytest.mark.parametrize(
    ("cache", "fields"),
    [
        (CacheConfig(min_prefix=4, warm_up=False), {}),
        (CacheConfig(min_prefix=4), {"n": 2}),
        (CacheConfig(min_prefix=4), {"messages": [*ASKED, {"role": "assistant", "content": ""}]}),
    ],
)
def test_what_will_come_back_otherwise_is_not_read_ahead(
    monkeypatch: pytest.MonkeyPatch, cache: CacheConfig, fields: dict[str, Any]
) -> None:
    def never(state: AppState, work: object) -> None:
        raise AssertionError("something is read ahead")

    monkeypatch.setattr(AppState, "spawn", never)

    async def work() -> None:
        async with serving(following_backend(), ServerConfig(cache=cache)) as served:
            assert (await served.chat(**{"messages": ASKED, **fields})).is_success

    run(work())
