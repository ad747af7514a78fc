"""What the prompt cache keeps: a state, and the tokens that it is the state of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mlxcel.engine.cache.hashing import Tokens
from mlxcel.engine.cache.storage import SavedState


@dataclass(slots=True, eq=False)
class Entry:
    """A saved state in the cache. Two entries are equal only when they are the same one."""

    scope: str
    """Who may use it."""
    tokens: Tokens
    """At least one."""
    state: SavedState
    producer: str = ""
    """What made it."""
    digests: tuple[bytes, ...] = ()
    """Chain over the whole blocks of `tokens`, where blocks are looked up."""
    used_at: float = 0.0
    """When it was made or last used, by the store's clock."""

    def begins(self, scope: str, tokens: Tokens) -> bool:
        """Whether it is of this scope and `tokens` begins with all of its tokens."""
        length = len(self.tokens)
        # The last token first: it tells most entries apart at once.
        return (
            self.scope == scope
            and length <= len(tokens)
            and self.tokens[-1] == tokens[length - 1]
            and np.array_equal(self.tokens, tokens[:length])
        )


@dataclass(frozen=True, slots=True)
class Match:
    """The first `length` tokens of an entry are those of a prompt."""

    entry: Entry
    length: int


def longest_whole(entries: Iterable[Entry], scope: str, tokens: Tokens) -> Match | None:
    """The longest of the entries that `tokens` begins with."""
    matches = [Match(entry, len(entry.tokens)) for entry in entries if entry.begins(scope, tokens)]
    return max(matches, key=lambda match: match.length, default=None)


def common_length(a: Tokens, b: Tokens) -> int:
    """How many tokens both begin with."""
    shorter = min(len(a), len(b))
    different = np.flatnonzero(a[:shorter] != b[:shorter])
    return int(different[0]) if len(different) else shorter
