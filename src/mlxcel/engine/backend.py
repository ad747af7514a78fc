"""The seam between scheduling and a model: what the worker thread asks for, and what it is told after loading.

`mlxcel.engine.runner.MlxBackend` is the real one. Tests put a scripted one behind the same methods, so that
everything above it (scheduler, worker, text, HTTP) runs as in production.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from mlxcel.engine.cache.retention import Retention
from mlxcel.engine.cache.storage import KvStorage, Reuse

if TYPE_CHECKING:
    from mlxcel.engine.sampling.rows import Rows

Logits = npt.NDArray[np.float32]


class Tokenizer(Protocol):
    """Text to ids and back, without any model framework behind it."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""
        ...

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Ids of `text`.

        add_special: let the tokenizer add its own BOS/EOS, as for a raw prompt.
        parse_special: read the spelling of a special token inside `text` as that token.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` with special tokens left out; bytes that are not UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token adds to the output; empty for special tokens."""
        ...


@dataclass(frozen=True, slots=True)
class KvLimit:
    """A budget for keys and values."""

    tokens: int
    """Of one sequence that has all of it."""
    bytes: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known once a model is loaded."""

    name: str
    """The id the API reports."""
    tokenizer: Tokenizer
    vocabulary: int
    """Tokens the model has embeddings for; the tokenizer may know fewer, or, in a broken checkpoint, more."""
    context_window: int
    """Tokens the model was made for."""
    chat_template: str | None
    """Jinja source, or None when the checkpoint has no template."""
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    """`bos_token`, `eos_token` and other names that templates use, to their text."""
    generation_defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The checkpoint's `generation_config.json`, as far as it names sampling fields."""
    architecture: str = ""
    """The checkpoint's `model_type`."""
    device: str = "cpu"
    kernels: str = ""
    """Which kernel path runs, for people."""
    weight_bytes: int = 0
    can_batch: bool = True
    """False when the model's caches cannot be merged into a batch; the engine then uses one slot."""
    reuse: Reuse = Reuse.BEGINNING
    """What the prompt cache can reuse of a sequence."""
    kv_limit: KvLimit | None = None
    """What the memory for keys and values holds at most; None: anything."""
    retention: Retention | None = None
    """What is kept of a long sequence; None: all of it."""


class Backend(Protocol):
    """A loaded model. Every method is called on the one worker thread.

    Rows: `prefill` works on a sequence of its own, named by `key`; `join` appends it to the decode batch as the
    last row; `decode` runs all rows in order; `leave` keeps only the rows named.

    `prefill` and `decode` raise MemoryError when the budget does not hold the new tokens; then nothing has changed.
    """

    @property
    def info(self) -> ModelInfo: ...

    @property
    def logit_rows(self) -> Rows:
        """What works on rows of logits."""
        ...

    @property
    def kv(self) -> KvStorage:
        """What the model remembers of sequences, in the decode batch or not."""
        ...

    def prefill(self, key: int, tokens: Sequence[int]) -> None:
        """Append `tokens` to the cache of the sequence `key` (created empty when new); no more at once than
        `Retention.piece_end` allows."""
        ...

    def join(self, key: int) -> None:
        """Move the sequence `key` into the decode batch as its last row."""
        ...

    def decode(self, tokens: Sequence[int]) -> Logits:
        """Append one token to each row and return the next-token logits, float32 [rows, vocabulary].

        The array is the caller's to change, row by row in one piece of memory, until the next call.
        """
        ...

    def leave(self, keep: Sequence[int]) -> None:
        """Keep only the rows at the positions `keep`, in that order."""
        ...

    def reset(self) -> None:
        """Drop every sequence, after a failed step. Saved states stay."""
        ...
