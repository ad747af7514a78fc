"""Log probabilities in the two OpenAI shapes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mlxcel.engine.events import TokenLogprob

FLOOR = -9999.0
"""Stands for "impossible": JSON has no minus infinity."""


class ChatToken(msgspec.Struct):
    """A token with its log probability; `bytes` lets clients join tokens that split a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatEntry(ChatToken):
    """The chosen token and the most likely ones, best first."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(msgspec.Struct):
    """`choices[].logprobs` of a chat completion."""

    content: list[ChatEntry]


class LegacyLogprobs(msgspec.Struct):
    """`choices[].logprobs` of a text completion: four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float]
    text_offset: list[int]
    top_logprobs: list[dict[str, float] | None]


def chat_logprobs(entries: Iterable[TokenLogprob]) -> ChatLogprobs:
    """Chat shape of `entries`."""
    return ChatLogprobs([_chat_entry(entry) for entry in entries])


class LegacyFormatter:
    """Legacy shape of one choice's entries, part by part: offsets run on from call to call.

    alternatives: how many likely tokens each entry lists; 0 lists none.
    """

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._characters = 0

    def format(self, entries: Iterable[TokenLogprob]) -> LegacyLogprobs:
        """Legacy shape of the next `entries`; offsets count characters of the generated text."""
        out = LegacyLogprobs([], [], [], [])
        for entry in entries:
            out.tokens.append(entry.chosen.text)
            out.token_logprobs.append(_finite(entry.chosen.logprob))
            out.text_offset.append(self._advance(entry.chosen.raw))
            out.top_logprobs.append(self._top(entry) if self._alternatives else None)
        return out

    def _advance(self, raw: bytes) -> int:
        """Offset of the character that `raw` starts in, or goes on with."""
        offset = self._characters
        if raw and _continues(raw[0]):
            offset = max(0, offset - 1)
        self._characters += sum(not _continues(byte) for byte in raw)
        return offset

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        top: dict[str, float] = {}
        for choice in (*entry.top, entry.chosen):
            top.setdefault(choice.text, _finite(choice.logprob))  # of equal spellings the likelier stands first
        return top


def _continues(byte: int) -> bool:
    """True for the second and later bytes of a UTF-8 character."""
    return byte & 0xC0 == 0x80


def _chat_entry(entry: TokenLogprob) -> ChatEntry:
    chosen = entry.chosen
    top = [ChatToken(choice.text, _finite(choice.logprob), list(choice.raw)) for choice in entry.top]
    return ChatEntry(chosen.text, _finite(chosen.logprob), list(chosen.raw), top)


def _finite(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR
