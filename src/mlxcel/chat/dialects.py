"""How model families mark their reasoning."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from mlxcel.engine.backend import Tokenizer


@dataclass(frozen=True, slots=True)
class Lead:
    """What a model writes before its answer."""

    close: str
    """The end of it; after that comes the answer."""
    opening: str | None = None
    """How it begins, if the model may also leave it out; None: it comes, or the prompt has begun it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The markers of one family, as they stand in the model's text."""

    name: str
    opens: tuple[str, ...]
    """Begin a reasoning block; the usual one first."""
    closes: tuple[str, ...]
    """End one; the usual one first."""
    strays: tuple[str, ...] = ()
    """Further structure that is never part of an answer."""
    signs: tuple[str, ...] = ()
    """A template that holds any of these is written for the family; none given: any of `opens` and `closes`."""
    answer: str = ""
    """Begins every answer, after the reasoning or without any; empty: nothing does."""

    @property
    def markers(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.opens, *self.closes, *self.strays)

    def begins_inside(self, prompt: str, continued: int = 0) -> bool:
        """Whether an answer to `prompt` begins inside a block, because the prompt ends in one.

        continued: characters at the end of the prompt that are the beginning of the answer itself.
        """
        scaffold = prompt[: len(prompt) - continued].rstrip()
        inside = scaffold.endswith(self.opens)
        written = prompt[len(prompt) - continued :]
        opened, closed = (max(map(written.rfind, markers)) for markers in (self.opens, self.closes))
        return opened > closed or (inside and closed < 0)

    def lead(self, prompt: str, continued: int = 0) -> Lead | None:
        """What comes before the answer to `prompt`; None: the answer begins at once. Parameters as `begins_inside`."""
        close = self.answer or self.closes[0]
        if self.begins_inside(prompt, continued):
            return Lead(close)
        scaffold = prompt.rstrip()
        if continued or scaffold.endswith(close):
            return None
        return Lead(close, None if self.answer else self.opens[0])


HARMONY = Dialect(
    "harmony",
    ("<|channel|>analysis<|message|>",),
    ("<|end|>", "<|return|>", "<|call|>", "<|start|>", "<|channel|>"),
    ("<|message|>", "<|constrain|>"),
    ("<|channel|>",),
    "<|channel|>final<|message|>",
)
"""GPT-OSS: an answer is a list of messages on channels."""

THINK = Dialect("think", ("<think>",), ("</think>",))
"""Qwen 3, DeepSeek, GLM, Exaone, Nemotron-H, SmolLM3 and many others."""

DIALECTS = (
    HARMONY,
    Dialect(
        "gemma4",
        ("<|channel>thought", "<|channel>"),
        ("<channel|>",),
        ("<|think|>", "<|turn>", "<turn|>"),
        ("<|channel>", "<channel|>"),
    ),
    Dialect(
        "inkling",
        ("<|content_thinking|>",),
        ("<|end_message|>",),
        ("<|message_model|>", "<|content_text|>"),
        ("<|content_thinking|>",),
        "<|content_text|>",
    ),
    Dialect(
        "kimi-k3",
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
        ("<|open|>",),
        "<|open|>response<|sep|>",
    ),
    Dialect(
        "cohere",
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        ("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ("<|START_THINKING|>",),
    ),
    Dialect("apertus", ("<|inner_prefix|>",), ("<|inner_suffix|>",)),
    Dialect("minimax-m3", ("<mm:think>",), ("</mm:think>",)),
    Dialect("longcat", ("<longcat_think>",), ("</longcat_think>",)),
    Dialect("magistral", ("[THINK]",), ("[/THINK]",)),
    Dialect("seed", ("<seed:think>",), ("</seed:think>",)),
    # Its templates put the names of their tokens together.
    Dialect("hunyuan3", ("<think:opensource>",), ("</think:opensource>",), signs=("<think{}>",)),
    THINK,
    Dialect(
        "solar",
        ("<|think|>",),
        ("<|end|>",),
        ("<|begin|>assistant", "<|content|>"),
        ("<|begin|>assistant<|think|>",),
    ),
)
"""All that are known; where a template shows signs of several, the first counts."""

_COMPONENTS = re.compile(r"<[^<>]+>|\[[^\[\]]+\]")
_NO_MARKER = "<|no such marker|>"


def read_dialect(template: str | None, tokenizer: Tokenizer) -> Dialect | None:
    """The dialect a template is written for; one that shows none: the one whose markers the vocabulary has."""
    for dialect in DIALECTS:
        if template is not None and any(sign in template for sign in _signs(dialect)):
            return dialect
    for dialect in DIALECTS:
        if all(_token(part, tokenizer) is not None for part in _components((dialect.opens[0], dialect.closes[0]))):
            return dialect
    return None


def special_spelling(markers: Collection[str], tokenizer: Tokenizer) -> dict[int, str]:
    """Those special tokens of a vocabulary that `markers` are made of, with the text that they do not show else."""
    tokens = {_token(part, tokenizer): part for part in (*_components(markers), *markers)}
    return {token: part for token, part in tokens.items() if token is not None and not tokenizer.token_bytes(token)}


def _signs(dialect: Dialect) -> tuple[str, ...]:
    return dialect.signs or (*dialect.opens, *dialect.closes)


def _components(markers: Iterable[str]) -> set[str]:
    """What may be tokens of their own: `<|open|>think<|sep|>` has two."""
    return {part for marker in markers for part in _COMPONENTS.findall(marker)}


def _token(part: str, tokenizer: Tokenizer) -> int | None:
    """The one token that `part` is; None when it is several, or what stands for the unknown."""
    tokens = tokenizer.encode(part)
    return tokens[0] if len(tokens) == 1 and tokens != tokenizer.encode(_NO_MARKER) else None
