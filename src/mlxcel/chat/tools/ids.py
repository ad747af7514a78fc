"""Ids of tool calls. Those a model writes itself are not used: they repeat from answer to answer."""

from __future__ import annotations

import secrets


def chat_id() -> str:
    """Of a call in chat completions."""
    return f"call_{secrets.token_hex(12)}"


def responses_id() -> str:
    """Of a call in Responses (`call_id`)."""
    return f"call_{secrets.token_hex(8)}"


def item_id() -> str:
    """Of the output item around a call in Responses."""
    return f"fc_{secrets.token_hex(8)}"


def messages_id() -> str:
    """Of a `tool_use` block in Messages."""
    return f"toolu_{secrets.token_hex(8)}"
