"""States any beginning of which can be taken over, found by the blocks that a prompt begins with.

Each block of tokens has a digest that covers all before it, so the deepest digest of a prompt that is known names the
entries that share most with it. Without blocks an entry is found only by a prompt that begins with all of it.
"""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.engine.cache.entry import Entry, Match, common_length, longest_whole
from mlxcel.engine.cache.hashing import BlockHasher, Tokens
from mlxcel.engine.cache.storage import KvStorage, SavedState
from mlxcel.engine.cache.store import Clock, EntryStore, Limits


class PrefixStore(EntryStore):
    """Entries by the beginnings of prompts.

    hasher: names of blocks; None: entries are found whole. most_blocks: different blocks there may be; 0: any number.
    """

    def __init__(
        self, storage: KvStorage, limits: Limits, clock: Clock, hasher: BlockHasher | None, most_blocks: int = 0
    ) -> None:
        super().__init__(storage, limits, clock)
        self.blocks_stored = 0
        """Blocks of all entries, shared ones counted for each."""
        self._hasher = hasher
        self._most_blocks = most_blocks
        self._holding: dict[bytes, dict[Entry, None]] = {}  # by each digest
        self._ending: dict[bytes, dict[Entry, None]] = {}  # by the last one

    @property
    def unique_blocks(self) -> int:
        """Different blocks among the entries."""
        return len(self._holding)

    def find(self, scope: str, tokens: Tokens) -> Match | None:
        """The entry of this scope that has most of the beginning of `tokens`."""
        if self._hasher is None:
            return longest_whole(self._entries, scope, tokens)
        blocks, holders = 0, dict[Entry, None]()
        for digest in self._hasher.chain(scope, tokens):
            if digest not in self._holding:
                break
            blocks, holders = blocks + 1, self._holding[digest]
        # Some may share a part of the next block too.
        known = blocks * self._hasher.block
        following = tokens[known : known + self._hasher.block]
        best = max(holders, key=lambda entry: common_length(entry.tokens[known:], following), default=None)
        if best is None or best.scope != scope:
            return None
        length = common_length(best.tokens, tokens)
        return Match(best, length) if length >= known else None  # less: two texts with one digest

    def put(self, scope: str, tokens: Tokens, save: Callable[[], SavedState | None]) -> None:
        """Keep the state of `tokens`, which `save` makes, unless an entry has it already.

        Entries that are found by blocks take the place of those they go on from.
        """
        digests = () if self._hasher is None else tuple(self._hasher.chain(scope, tokens))
        if self._hasher is None:
            same = [entry for entry in self._entries if len(entry.tokens) == len(tokens)]
        elif digests:
            same = [entry for entry in self._holding.get(digests[-1], ()) if len(entry.tokens) >= len(tokens)]
        else:
            return  # nobody would find it
        for entry in same:
            if entry.scope == scope and common_length(entry.tokens, tokens) == len(tokens):
                self.touch(entry)
                return
        state = save()
        if state is not None:
            shorter = [entry for digest in digests for entry in self._ending.get(digest, ())]
            replaced = [entry for entry in shorter if entry.begins(scope, tokens)]
            self.add(Entry(scope, tokens, state, digests=digests), replaced)

    def _added(self, entry: Entry) -> None:
        self.blocks_stored += len(entry.digests)
        for digest in entry.digests:
            self._holding.setdefault(digest, {})[entry] = None
        for digest in entry.digests[-1:]:
            self._ending.setdefault(digest, {})[entry] = None

    def _removed(self, entry: Entry) -> None:
        self.blocks_stored -= len(entry.digests)
        for digest in entry.digests:
            _forget(self._holding, digest, entry)
        for digest in entry.digests[-1:]:
            _forget(self._ending, digest, entry)

    def _over(self) -> bool:
        return super()._over() or (self._most_blocks > 0 and len(self._holding) > self._most_blocks)


def _forget(index: dict[bytes, dict[Entry, None]], digest: bytes, entry: Entry) -> None:
    holders = index[digest]
    del holders[entry]
    if not holders:
        del index[digest]
