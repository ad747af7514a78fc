"""States that can only be taken over whole: a prompt must begin with all the tokens of one."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.engine.cache.entry import Entry, Match, longest_whole
from mlxcel.engine.cache.hashing import Tokens
from mlxcel.engine.cache.storage import KvStorage, SavedState
from mlxcel.engine.cache.store import Clock, EntryStore, Limits


class SnapshotStore(EntryStore):
    """Entries by scope, which is narrow here: a conversation."""

    def __init__(self, storage: KvStorage, limits: Limits, clock: Clock) -> None:
        super().__init__(storage, limits, clock)
        self.supersedes = 0
        """Entries whose place a longer one of the same producer took."""
        self._by_scope: dict[str, dict[Entry, None]] = {}

    def find(self, scope: str, tokens: Tokens) -> Match | None:
        """The longest entry of this scope that `tokens` begins with."""
        return longest_whole(self._by_scope.get(scope, ()), scope, tokens)

    def put(self, scope: str, tokens: Tokens, producer: str, save: Callable[[], SavedState | None]) -> None:
        """Keep the state of `tokens`, which `save` makes, unless it is there, in place of those of the same producer
        that it goes on from."""
        begun = [entry for entry in self._by_scope.get(scope, ()) if entry.begins(scope, tokens)]
        for entry in begun:
            if len(entry.tokens) == len(tokens):
                self.touch(entry)
                return
        state = save()
        if state is not None:
            replaced = [entry for entry in begun if entry.producer == producer]
            if self.add(Entry(scope, tokens, state, producer), replaced):
                self.supersedes += len(replaced)

    def _added(self, entry: Entry) -> None:
        self._by_scope.setdefault(entry.scope, {})[entry] = None

    def _removed(self, entry: Entry) -> None:
        entries = self._by_scope[entry.scope]
        del entries[entry]
        if not entries:
            del self._by_scope[entry.scope]
