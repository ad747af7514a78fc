"""What an answer leaves behind for the next turn: its reasoning, and the state after it."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.api.state import AppState
from mlxcel.config import CacheConfig, ChatConfig, NetworkConfig, ServerConfig
from mlxcel.engine.cache.storage import Reuse
from tests.chat.conftest import TEMPLATES
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


def following_backend(
    answer: bytes = ANSWER, template: str = TEMPLATE, scaffold: bytes = b"assistant: "
) -> ScriptedBackend:
    """Says the same after every prompt, also in a conversation."""

    def follow(fed: list[int]) -> int:
        said = bytes(token for token in fed if token < 256).rpartition(scaffold)[2]
        return answer[len(said)] if len(said) < len(answer) else EOS

    backend = ScriptedBackend(follow=follow, kv=ScriptedStorage(Reuse.WHOLE))  # type: ignore[arg-type]
    return with_info(backend, chat_template=template, reuse=Reuse.WHOLE)


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
        (CacheConfig(min_prefix=4), {"cache_prompt": False}),
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


CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}},
}
THOUGHTS = "<think>\nhm hm\n</think>\n\n"
CANONICAL = '<tool_call>\n{"name": "clock", "arguments": {"city": "Oslo"}}\n</tool_call>'
COMPACT = '<tool_call>{"name":"clock","arguments":{"city":"Oslo"}}</tool_call>'
CALLED = [{"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]
QUESTION = [{"role": "user", "content": "What time is it?"}]


class Agent:
    """A client with a function, that forgets reasoning."""

    def __init__(self, served: Served, key: str = "") -> None:
        self.served = served
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self.messages: list[dict[str, Any]] = list(QUESTION)
        self.prompts: list[str] = []

    async def turn(self, **fields: Any) -> int:
        """One turn, with its calls answered; how many tokens of its prompt were known."""
        body = {"messages": self.messages, "tools": [CLOCK], **fields}
        post = self.served.http.post
        self.prompts.append((await post("/apply-template", json=body, headers=self.headers)).json()["prompt"])
        answer = (await post("/v1/chat/completions", json=body, headers=self.headers)).json()
        message = answer["choices"][0]["message"]
        self.messages.append({name: message[name] for name in ("role", "content", "tool_calls") if name in message})
        self.messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "12:00"} for call in message.get("tool_calls", ())
        ]
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def agents_backend(said: str, template: str = "qwen3") -> ScriptedBackend:
    source = (TEMPLATES / f"{template}.jinja").read_text()
    return following_backend(said.encode(), source, b"<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("template", "said", "written"),
    [
        ("qwen3", THOUGHTS + CANONICAL, THOUGHTS + CANONICAL),
        ("qwen3", THOUGHTS + COMPACT, THOUGHTS + CANONICAL),
        ("qwen3", f"{THOUGHTS}A moment.\n{COMPACT}\n{COMPACT}", f"{THOUGHTS}A moment.\n{CANONICAL}\n{CANONICAL}"),
        ("hermes", CANONICAL, CANONICAL),
        ("hermes", THOUGHTS + COMPACT, CANONICAL),
    ],
)
def test_the_next_prompt_of_an_agent_begins_after_its_calls(template: str, said: str, written: str) -> None:
    """Also where the template writes them in another way, or leaves the reasoning out."""

    async def work() -> None:
        config = ServerConfig(cache=CacheConfig(min_prefix=4))
        async with serving(agents_backend(said, template), config) as served:
            agent = Agent(served)
            for number in range(3):
                known = await agent.turn()
                if number:
                    prompt = agent.prompts[-1]
                    assert prompt.count(written) == number
                    assert known == 1 + prompt.index("12:00", prompt.rindex(written))
                # After the history, after the answer as it was said, and as it will be written.
                expected = 3 * (number + 1)
                await until(lambda: served.engine.cache_stats().snapshot_inserts == expected)  # noqa: B023

    run(work())


def test_keys_share_neither_reasoning_nor_states_of_calls() -> None:
    async def work() -> None:
        config = ServerConfig(cache=CacheConfig(min_prefix=4), network=NetworkConfig(api_keys=("one", "two")))
        async with serving(agents_backend(THOUGHTS + CANONICAL), config) as served:
            one, two = Agent(served, "one"), Agent(served, "two")
            await one.turn()
            two.messages = one.messages
            assert await two.turn() == 0
            assert "hm hm" not in two.prompts[-1]
            one.messages = one.messages[:3]
            assert await one.turn() > 0
            assert "hm hm" in one.prompts[-1]

    run(work())


def test_a_template_that_takes_no_reasoning_beside_calls_gets_none() -> None:
    refusing = (
        TEMPLATE.replace("{% for", "{# <think> <tool_call> #}{{ tools }}{% for", 1)
        + "{% for m in messages if m.tool_calls and m.reasoning_content %}{{ raise_exception('no') }}{% endfor %}"
    )

    async def work() -> None:
        async with serving(following_backend((THOUGHTS + CANONICAL).encode(), refusing)) as served:
            agent = Agent(served)
            await agent.turn()
            await agent.turn()
            assert agent.prompts[-1].count("12:00") == 1
            broken = {"messages": [{"role": "assistant", "reasoning": "x", "tool_calls": CALLED}, *QUESTION]}
            refused = await served.http.post("/v1/chat/completions", json={**broken, "preserve_thinking": True})
            assert (refused.status_code, refused.json()["error"]["message"]) == (400, "no")

    run(work())
