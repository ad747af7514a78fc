"""Where sequences keep their keys and values: what of it one sequence may take over from another, and what it costs.

A backend implements `KvStorage`; the prompt cache and the admission of sequences know no more about memory than this.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Protocol


class Reuse(enum.Enum):
    """How much of a saved state another sequence can begin with."""

    NOTHING = enum.auto()
    BEGINNING = enum.auto()
    """The first tokens, any number of them: plain attention."""
    WHOLE = enum.auto()
    """All of it or nothing: state that cannot be cut, as of recurrent layers and rotating windows."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedState:
    """The keys, values and states after the first tokens of a sequence, kept beyond its life."""

    length: int
    """Tokens it covers."""
    blocks: tuple[int, ...]
    """Blocks it holds; other states and sequences may hold them too."""
    own_bytes: int
    """Bytes it takes besides blocks."""
    content: Any
    """For the storage that made it."""


@dataclass(frozen=True, slots=True)
class KvMemory:
    """Bytes for keys, values and states: of running sequences and of saved states together."""

    used: int
    budget: int | None
    """None: no limit."""


class KvStorage(Protocol):
    """Keys, values and states of sequences, which are named by their keys."""

    @property
    def reuse(self) -> Reuse:
        """What `adopt` can take of a saved state."""
        ...

    @property
    def mode(self) -> str:
        """What keys and values are stored as, for people."""
        ...

    @property
    def block_bytes(self) -> int:
        """Size of the blocks that states list; 0 without blocks."""
        ...

    @property
    def memory(self) -> KvMemory:
        """What is in use."""
        ...

    def length(self, key: int) -> int:
        """Tokens that are stored of a sequence; 0 for an unknown one, and for one that does not have all of its tokens
        any more, of which nothing can be saved."""
        ...

    def growth(self, key: int, tokens: int) -> int:
        """Bytes that storing this many more tokens of a sequence, or of a new one, takes."""
        ...

    def discard(self, key: int) -> None:
        """Forget a sequence that is no row of the decode batch; unknown keys are ignored."""
        ...

    def save(self, key: int, length: int) -> SavedState | None:
        """Keep the state after the first `length` tokens of a sequence, all it has unless it can be cut; None when
        that is not possible."""
        ...

    def adopt(self, key: int, state: SavedState, length: int) -> None:
        """Begin the new sequence `key` with the first `length` tokens of a state, all of them unless it can be cut."""
        ...

    def freed_by_drop(self, state: SavedState) -> int:
        """Bytes that dropping a state would free now."""
        ...

    def drop(self, state: SavedState) -> None:
        """Give up a saved state, once."""
        ...
