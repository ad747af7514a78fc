"""What the chat room refuses with."""

from __future__ import annotations


class PromptError(Exception):
    """A conversation that cannot be turned into a prompt. The message is meant for the client, as a 400."""
