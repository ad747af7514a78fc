"""Messages: which conversations can be served, and what the prompt builder gets."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.messages import check_input, check_media, plain_messages
from mlxcel.api.openai.schema import Message

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def messages(*raw: dict[str, Any]) -> list[Message]:
    return msgspec.convert(list(raw), list[Message])


@pytest.mark.parametrize(
    "raw",
    [
        {"role": "user", "content": "x"},
        {"role": "user", "content": [{"type": "text", "text": " "}, {"type": "text", "text": "x"}]},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {"role": "assistant", "content": None, "reasoning": "hm"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
    ],
)
def test_something_to_work_with(raw: dict[str, Any]) -> None:
    check_input(messages({"role": "system"}, raw))


@pytest.mark.parametrize(
    "raw",
    [
        [],
        [{"role": "user"}],
        [{"role": "user", "content": " \n\t"}, {"role": "system", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "text", "text": ""}]}],
        [{"role": "assistant", "tool_calls": [], "reasoning": " "}],
    ],
)
def test_nothing_to_work_with(raw: list[dict[str, Any]]) -> None:
    with pytest.raises(ApiError) as caught:
        check_input(messages(*raw))
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("image_url", {"image_url": {"url": "http://10.0.0.1/x.png"}}),
        ("image_url", {"image_url": "/etc/passwd"}),
        ("video_url", {"video_url": {"url": "file:///x"}}),
        ("input_audio", {"input_audio": {"data": "?", "format": "wav"}}),
        ("input_audio", {}),
    ],
)
def test_media_is_refused_whatever_it_points_to(kind: str, value: dict[str, Any]) -> None:
    conversation = messages(
        {"role": "user", "content": "look"},
        {"role": "user", "content": [{"type": "text", "text": "at"}, {"type": kind, **value}]},
    )
    with pytest.raises(ApiError, match=kind) as caught:
        check_media(conversation)
    error = caught.value
    assert (error.status, error.type, error.param) == (501, "not_supported_error", "messages[1].content")


def test_text_is_no_media() -> None:
    check_media(messages({"role": "user", "content": [{"type": "text", "text": "x"}]}, {"role": "tool"}))


@pytest.mark.parametrize(
    "raw",
    [
        {"content": "x"},
        {"role": "function", "content": "x"},
        {"role": 3, "content": "x"},
        {"role": "user", "content": 3},
        {"role": "user", "content": {"type": "text", "text": "x"}},
        {"role": "user", "content": ["x"]},
        {"role": "user", "content": [{"text": "x"}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": None}]},
        {"role": "user", "content": [{"type": "sculpture"}]},
        {"role": "assistant", "tool_calls": [{"id": "c"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": 3}}]},
    ],
)
def test_malformed_messages(raw: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"\$\[0\]"):
        messages(raw)


def test_plain_form() -> None:
    raw = [
        {"role": "developer", "content": "rules", "name": "boss"},
        {"role": "user", "content": [{"type": "text", "text": "question"}]},
        {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c", "content": "result"},
    ]
    assert plain_messages(messages(*raw)) == raw
    assert plain_messages(messages({"role": "user", "content": None, "unknown": 1})) == [{"role": "user"}]
