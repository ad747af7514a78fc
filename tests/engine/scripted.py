"""A backend without a model: each sequence says what its script wrote for its prompt.

It stands behind the real scheduler, worker and engine, and checks what they feed it: a sequence must get exactly its
prompt, then exactly the tokens it gave out, in its own row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxcel.engine.backend import Logits, ModelInfo

EOS = 256
VOCABULARY = 258

Script = Callable[[bytes], Sequence[int]]
"""From the prompt to the tokens of the answer."""


class ByteTokenizer:
    """One token a byte; 256 ends the text, 257 begins it."""

    vocab_size = VOCABULARY
    eos_token_ids = frozenset({EOS})

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return [257] * add_special + list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if 0 <= token_id < 256 else b""


def echo(prompt: bytes) -> list[int]:
    """Repeat the prompt, then stop."""
    return [*prompt, EOS]


@dataclass
class Row:
    """A sequence's cache: the tokens it was fed."""

    fed: list[int] = field(default_factory=list)
    joined_at: int | None = None


class ScriptedBackend:
    """Gives out scripted tokens.

    gate: decode waits until it is set.
    fail_prefill, fail_decode: raise when they return an exception for what is being computed.
    poison: logits of sequences whose prompt begins with this byte are not numbers.
    """

    def __init__(self, script: Script = echo, *, context: int = 4096, can_batch: bool = True) -> None:
        self.info = ModelInfo(
            name="scripted",
            tokenizer=ByteTokenizer(),
            vocabulary=VOCABULARY,
            context_window=context,
            chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
            can_batch=can_batch,
        )
        self.script = script
        self.gate = threading.Event()
        self.gate.set()
        self.fail_prefill: Callable[[Sequence[int]], Exception | None] = lambda tokens: None
        self.fail_decode: Callable[[list[Row]], Exception | None] = lambda rows: None
        self.poison: int | None = None
        self.pending: dict[int, Row] = {}
        self.rows: list[Row] = []
        self.widths: list[int] = []

    def prefill(self, key: int, tokens: Sequence[int]) -> None:
        if error := self.fail_prefill(tokens):
            raise error
        self.pending.setdefault(key, Row()).fed.extend(tokens)

    def join(self, key: int) -> None:
        row = self.pending.pop(key, None) or Row()
        row.joined_at = len(row.fed) + 1
        self.rows.append(row)

    def discard(self, key: int) -> None:
        self.pending.pop(key, None)

    def decode(self, tokens: Sequence[int]) -> Logits:
        self.gate.wait()
        assert len(tokens) == len(self.rows), "one token a row"
        self.widths.append(len(tokens))
        if error := self.fail_decode(self.rows):
            raise error
        logits = np.full((len(tokens), VOCABULARY), -20.0, np.float32)
        for index, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            row.fed.append(token)
            assert row.joined_at is not None
            prompt, said = row.fed[: row.joined_at], row.fed[row.joined_at :]
            answer = self.script(bytes(t for t in prompt if t < 256))
            assert said == list(answer[: len(said)]), "a row was fed another row's token"
            if prompt[0] == self.poison:
                logits[index] = np.nan
            logits[index, answer[len(said)] if len(said) < len(answer) else EOS] = 20.0
        return logits

    def leave(self, keep: Sequence[int]) -> None:
        self.rows = [self.rows[index] for index in keep]

    def reset(self) -> None:
        self.pending.clear()
        self.rows.clear()
