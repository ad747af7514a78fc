"""The reasoning of earlier answers, for clients that send them back without it.

Most clients keep the content of an answer and forget its reasoning. A template then writes the turn differently from
how it was generated, and a model whose state cannot be cut has to read the conversation again. So reasoning is kept
here for a while, under a digest of the API key and of everything that was said up to the answer, and put back where the
same conversation returns.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Message = Mapping[str, Any]

MOST_ENTRIES = 4096
_LARGEST_SHARE = 8
"""One trace may take this part of the capacity at most."""
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


class Recalled(NamedTuple):
    """A conversation with what is known of its reasoning."""

    messages: list[dict[str, Any]]
    said: bytes
    """Stands for the key and all that was said: `remember` knows by it what was answered."""


class ReasoningEcho:
    """Reasoning by conversation; the least recently used goes first. Any thread may use it.

    capacity: bytes of text; 0: nothing is kept.
    """

    def __init__(self, capacity: int, most_entries: int = MOST_ENTRIES) -> None:
        self._capacity = capacity
        self._most_entries = most_entries
        self._bytes = 0
        self._kept: OrderedDict[bytes, str] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, said: bytes, answer: Message, reasoning: str) -> None:
        """Keep the reasoning of `answer`, the assistant message that follows what `recall` gave `said` for.

        Nothing is kept of an answer whose content shows its reasoning.
        """
        size = len(reasoning.encode(errors="replace"))
        if not reasoning or size > self._capacity // _LARGEST_SHARE or reasoning in _text(answer.get("content")):
            return
        key = _then(said, answer)
        with self._lock:
            self._drop(key)
            self._kept[key] = reasoning
            self._bytes += size
            while self._bytes > self._capacity or len(self._kept) > self._most_entries:
                self._drop(next(iter(self._kept)))

    def recall(self, tenant: str, messages: Sequence[Message]) -> Recalled:
        """The messages, with what is known of the reasoning of those assistant messages before the last message that
        come without any. Takes milliseconds for a long conversation."""
        recalled = [dict(message) for message in messages]
        said = hashlib.sha256(tenant.encode()).digest()
        for index, message in enumerate(recalled):
            said = _then(said, message)
            last = index == len(recalled) - 1
            if last or message.get("role") != "assistant" or any(message.get(name) for name in _REASONING_FIELDS):
                continue
            with self._lock:
                if said in self._kept:
                    self._kept.move_to_end(said)
                    message["reasoning_content"] = self._kept[said]
        return Recalled(recalled, said)

    def _drop(self, key: bytes) -> None:
        if key in self._kept:
            self._bytes -= len(self._kept.pop(key).encode(errors="replace"))


def _then(said: bytes, message: Message) -> bytes:
    """A digest of what was said with one more message, reasoning left out, from the one before it."""
    more = [
        message.get("role"),
        message.get("name"),
        message.get("tool_call_id"),
        _text(message.get("content")).strip(),
        [_call(call) for call in message.get("tool_calls") or ()],
    ]
    return hashlib.sha256(said + json.dumps(more, sort_keys=True, default=str).encode()).digest()


def _text(content: Any) -> str:
    """Text of a message as a string; parts are told apart from one that holds them all."""
    if content is None:
        return ""
    return content if isinstance(content, str) else json.dumps(content, sort_keys=True, default=str)


def _call(call: Mapping[str, Any]) -> list[Any]:
    """A call without its id, its arguments as a value: clients write JSON in their own way."""
    function: Mapping[str, Any] = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return [function.get("name"), arguments]
