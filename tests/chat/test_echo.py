"""Reasoning comes back where the same conversation does, for the same key, and nowhere else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.chat.echo import ReasoningEcho

ASKED: list[dict[str, Any]] = [{"role": "system", "content": "rules"}, {"role": "user", "content": "question"}]
ANSWER = {"role": "assistant", "content": "Yes."}
MORE = {"role": "user", "content": "and?"}


def remember(echo: ReasoningEcho, messages: list[dict[str, Any]], answer: dict[str, Any], reasoning: str) -> None:
    echo.remember(echo.recall("key", messages).said, answer, reasoning)


def remembering(answer: dict[str, Any] = ANSWER, capacity: int = 1 << 20) -> ReasoningEcho:
    echo = ReasoningEcho(capacity)
    remember(echo, ASKED, answer, "hm hm")
    return echo


def recalled(echo: ReasoningEcho, messages: list[dict[str, Any]], tenant: str = "key") -> list[Any]:
    before = copy.deepcopy(messages)
    out = echo.recall(tenant, messages).messages
    assert messages == before, "what was given is not changed"
    without = [{k: v for k, v in message.items() if k != "reasoning_content"} for message in out]
    assert without == [{k: v for k, v in message.items() if k != "reasoning_content"} for message in messages]
    return [message.get("reasoning_content") for message in out]


def test_it_comes_back_in_the_same_conversation() -> None:
    echo = remembering()
    assert recalled(echo, [*ASKED, ANSWER, MORE]) == [None, None, "hm hm", None]
    remember(echo, [*ASKED, ANSWER, MORE], {"role": "assistant", "content": "No."}, "well")
    longer = [*ASKED, ANSWER, MORE, {"role": "assistant", "content": "\nNo. "}, MORE]
    assert recalled(echo, longer) == [None, None, "hm hm", None, "well", None]


@pytest.mark.parametrize(
    "messages",
    [
        [*ASKED, {"role": "assistant", "content": "Yes!"}, MORE],
        [ASKED[0], {"role": "user", "content": "other"}, ANSWER, MORE],
        [ASKED[1], ANSWER, MORE],
        [*ASKED, MORE, ANSWER, MORE],
        [ASKED[0], {"role": "user", "content": "question", "name": "n"}, ANSWER, MORE],
        [*ASKED, {"role": "user", "content": "Yes."}, MORE],
        [*ASKED, {**ANSWER, "tool_calls": [{"function": {"name": "f"}}]}, MORE],
        [*ASKED, ANSWER],
    ],
)
def test_it_does_not_come_back_elsewhere(messages: list[dict[str, Any]]) -> None:
    assert recalled(remembering(), messages) == [None] * len(messages)


def test_keys_do_not_see_each_others() -> None:
    assert recalled(remembering(), [*ASKED, ANSWER, MORE], "other") == [None] * 4


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_what_a_client_sends_stays(field: str) -> None:
    echo = remembering()
    sent = {**ANSWER, field: "mine"}
    assert echo.recall("key", [*ASKED, sent, MORE]).messages[2] == sent


def test_calls_are_the_same_however_their_arguments_are_written() -> None:
    def calling(arguments: Any, name: str = "f", **more: Any) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}, **more}]}

    echo = remembering(calling('{"a": 1, "b": [2]}', id="call_1"))
    with_text = {**calling('{"a":1,"b":[2]}'), "content": ""}
    for same in (calling('{"b":[2],"a":1}', id="x"), calling({"a": 1, "b": [2]}), with_text):
        assert recalled(echo, [*ASKED, same, MORE])[2] == "hm hm"
    for other in (calling('{"a": 1}'), calling('{"a": 1, "b": [2]}', "g"), calling("{"), ANSWER):
        assert recalled(echo, [*ASKED, other, MORE])[2] is None


def test_nothing_is_kept_of_an_answer_that_shows_it() -> None:
    shown = {"role": "assistant", "content": "<think>hm hm</think>Yes."}
    assert recalled(remembering(shown), [*ASKED, shown, MORE])[2] is None


def test_without_capacity_nothing_is_kept() -> None:
    assert recalled(remembering(capacity=0), [*ASKED, ANSWER, MORE])[2] is None
    assert recalled(remembering(capacity=39), [*ASKED, ANSWER, MORE])[2] is None, "one is an eighth at most"
    assert recalled(remembering(capacity=40), [*ASKED, ANSWER, MORE])[2] == "hm hm"


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30), st.booleans()), max_size=60))
def test_the_least_recently_used_goes_first(uses: list[tuple[int, int, bool]]) -> None:
    """Against a list in the order of use."""
    capacity, most = 240, 5
    echo = ReasoningEcho(capacity, most)
    model: dict[int, int] = {}  # conversation -> size
    for number, size, recall in uses:
        asked = [{"role": "user", "content": str(number)}]
        if recall:
            found = echo.recall("key", [*asked, ANSWER, MORE]).messages[1].get("reasoning_content")
            assert (found and len(found)) == model.get(number)
            if number in model:
                model[number] = model.pop(number)
            continue
        remember(echo, asked, ANSWER, "x" * size)
        model.pop(number, None)
        model[number] = size
        while sum(model.values()) > capacity or len(model) > most:
            del model[next(iter(model))]
    for number in range(10):
        found = echo.recall("key", [{"role": "user", "content": str(number)}, ANSWER, MORE]).messages[1]
        assert len(found.get("reasoning_content", "")) == model.get(number, 0)
