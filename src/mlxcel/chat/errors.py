"""What the chat room refuses with."""

from __future__ import annotations


class PromptError(Exception):
    """A conversation that cannot be turned into a prompt. The message is meant for the client, as a 400.

    param: the request field at fault, where there is one.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
