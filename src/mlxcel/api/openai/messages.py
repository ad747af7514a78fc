"""Chat messages: what makes a conversation servable, and its plain form for the prompt builder."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from mlxcel.api.errors import NOT_SUPPORTED, ApiError, invalid
from mlxcel.api.openai.schema import AudioPart, ImagePart, Message, TextPart, VideoPart

MediaPart = ImagePart | VideoPart | AudioPart


def check_input(messages: Sequence[Message]) -> None:
    """Raises ApiError 400 when no message carries anything: text, media, a tool call or reasoning."""
    if not any(map(_has_input, messages)):
        raise invalid("messages contain no text", "messages")


def check_media(messages: Sequence[Message]) -> None:
    """Raises ApiError 501 at the first part that is not text. Nothing it points to is read."""
    for position, message in enumerate(messages):
        if not isinstance(message.content, list):
            continue
        for part in message.content:
            if isinstance(part, MediaPart):
                raise ApiError(
                    HTTPStatus.NOT_IMPLEMENTED,
                    NOT_SUPPORTED,
                    f"The loaded model takes text only, not '{part.__struct_config__.tag}' content.",
                    param=f"messages[{position}].content",
                )


def plain_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages as the dicts that chat templates read; absent fields are left out."""
    return [msgspec.to_builtins(message) for message in messages]


def _has_input(message: Message) -> bool:
    if message.tool_calls:
        return True
    texts = [message.reasoning, message.reasoning_content]
    if not isinstance(message.content, list):
        texts.append(message.content)
    else:
        for part in message.content:
            if isinstance(part, MediaPart):
                return True
            texts.append(part.text if isinstance(part, TextPart) else part.refusal)
    return any(text and not text.isspace() for text in texts)
