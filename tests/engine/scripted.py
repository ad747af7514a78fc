"""A backend without a model: each sequence says what its script wrote for its prompt.

It stands behind the real scheduler, worker and engine, and checks what they feed it: a sequence must get exactly its
prompt, then exactly the tokens it gave out, in its own row.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mlxcel.engine.backend import Logits, ModelInfo
from mlxcel.engine.cache.storage import KvMemory, Reuse, SavedState
from mlxcel.engine.sampling.rows import make_rows

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
    """A sequence's cache: the tokens it was fed, and the blocks they are in."""

    fed: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    joined_at: int | None = None


class ScriptedStorage:
    """Implements `KvStorage` with lists of tokens, and blocks that are only counted.

    budget: blocks there may be; None: any number. A block that is shared is left before it is written, and one that
    nobody holds must never be used.
    """

    BLOCK = 8
    block_bytes = 1000
    mode = "tokens"

    def __init__(self, reuse: Reuse = Reuse.BEGINNING, budget: int | None = None) -> None:
        self.reuse = reuse
        self.budget = budget
        self.sequences: dict[int, Row] = {}
        self.owners: Counter[int] = Counter()
        self._next_block = 0

    @property
    def memory(self) -> KvMemory:
        budget = None if self.budget is None else self.budget * self.block_bytes
        return KvMemory(len(self.owners) * self.block_bytes, budget)

    def length(self, key: int) -> int:
        return len(self.sequences[key].fed) if key in self.sequences else 0

    def growth(self, key: int, tokens: int) -> int:
        return self._missing(self.sequences.get(key, Row()), tokens) * self.block_bytes

    def append(self, row: Row, tokens: Sequence[int]) -> None:
        missing = self._missing(row, len(tokens))
        if self.budget is not None and len(self.owners) + missing > self.budget:
            raise MemoryError
        if self._continues_shared(row):
            self._release(row.blocks.pop())
        row.fed.extend(tokens)
        while len(row.blocks) * self.BLOCK < len(row.fed):
            self._next_block += 1
            self.owners[self._next_block] = 1
            row.blocks.append(self._next_block)

    def open(self, key: int) -> Row:
        return self.sequences.setdefault(key, Row())

    def discard(self, key: int) -> None:
        for block in self.sequences.pop(key, Row()).blocks:
            self._release(block)

    def save(self, key: int, length: int) -> SavedState:
        row = self.sequences[key]
        assert length == len(row.fed) or self.reuse is Reuse.BEGINNING
        saved = self._shared(row, length)
        return SavedState(length, tuple(saved.blocks), 0, saved)

    def adopt(self, key: int, state: SavedState, length: int) -> None:
        assert key not in self.sequences
        assert length == state.length or self.reuse is Reuse.BEGINNING
        self.sequences[key] = self._shared(state.content, length)

    def freed_by_drop(self, state: SavedState) -> int:
        return sum(self.owners[block] == 1 for block in state.blocks) * self.block_bytes

    def drop(self, state: SavedState) -> None:
        for block in state.blocks:
            self._release(block)

    def _shared(self, row: Row, length: int) -> Row:
        blocks = row.blocks[: -(-length // self.BLOCK)]
        assert all(self.owners[block] > 0 for block in blocks), "a block was freed while it was in use"
        self.owners.update(blocks)
        return Row(row.fed[:length], list(blocks))

    def _release(self, block: int) -> None:
        assert self.owners[block] > 0, "a block was freed twice"
        self.owners[block] -= 1
        if not self.owners[block]:
            del self.owners[block]

    def _continues_shared(self, row: Row) -> bool:
        return len(row.fed) % self.BLOCK != 0 and self.owners[row.blocks[-1]] > 1

    def _missing(self, row: Row, tokens: int) -> int:
        return -(-(len(row.fed) + tokens) // self.BLOCK) - len(row.blocks) + self._continues_shared(row)


class ScriptedBackend:
    """Gives out scripted tokens.

    follow: instead of a script, the next token from all before it; then a sequence may come back after it was put off.
    gate: decode waits until it is set.
    fail_prefill, fail_decode: raise when they return an exception for what is being computed.
    poison: logits of sequences whose prompt begins with this byte are not numbers.
    """

    def __init__(
        self,
        script: Script = echo,
        *,
        context: int = 4096,
        can_batch: bool = True,
        follow: Callable[[Sequence[int]], int] | None = None,
        kv: ScriptedStorage | None = None,
    ) -> None:
        self.info = ModelInfo(
            name="scripted",
            tokenizer=ByteTokenizer(),
            vocabulary=VOCABULARY,
            context_window=context,
            chat_template="{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
            can_batch=can_batch,
        )
        self.kv = kv or ScriptedStorage()
        self.logit_rows = make_rows()
        self.script = script
        self.follow = follow
        self.gate = threading.Event()
        self.gate.set()
        self.fail_prefill: Callable[[Sequence[int]], Exception | None] = lambda tokens: None
        self.fail_decode: Callable[[list[Row]], Exception | None] = lambda rows: None
        self.poison: int | None = None
        self.keys: list[int] = []
        self.widths: list[int] = []
        self.prefilled: list[int] = []
        """Tokens of each prefill step."""

    @property
    def rows(self) -> list[Row]:
        return [self.kv.sequences[key] for key in self.keys]

    @property
    def pending(self) -> dict[int, Row]:
        return {key: row for key, row in self.kv.sequences.items() if key not in self.keys}

    def prefill(self, key: int, tokens: Sequence[int]) -> None:
        if error := self.fail_prefill(tokens):
            raise error
        self.kv.append(self.kv.open(key), tokens)
        self.prefilled.append(len(tokens))

    def join(self, key: int) -> None:
        row = self.kv.open(key)
        row.joined_at = len(row.fed) + 1
        self.keys.append(key)

    def decode(self, tokens: Sequence[int]) -> Logits:
        self.gate.wait()
        assert len(tokens) == len(self.rows), "one token a row"
        self.widths.append(len(tokens))
        if error := self.fail_decode(self.rows):
            raise error
        growth = sum(self.kv.growth(key, 1) for key in self.keys)
        budget = self.kv.memory.budget
        if budget is not None and self.kv.memory.used + growth > budget:
            raise MemoryError
        logits = np.full((len(tokens), VOCABULARY), -20.0, np.float32)
        for index, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            self.kv.append(row, [token])
            if row.fed[0] == self.poison:
                logits[index] = np.nan
            logits[index, self._next(row)] = 20.0
        return logits

    def _next(self, row: Row) -> int:
        if self.follow is not None:
            return self.follow(row.fed)
        assert row.joined_at is not None
        prompt, said = row.fed[: row.joined_at], row.fed[row.joined_at :]
        answer = self.script(bytes(t for t in prompt if t < 256))
        assert said == list(answer[: len(said)]), "a row was fed another row's token"
        return answer[len(said)] if len(said) < len(answer) else EOS

    def leave(self, keep: Sequence[int]) -> None:
        staying = [self.keys[index] for index in keep]
        for key in self.keys:
            if key not in staying:
                self.kv.discard(key)
        self.keys = staying

    def reset(self) -> None:
        for key in list(self.kv.sequences):
            self.kv.discard(key)
        self.keys = []
