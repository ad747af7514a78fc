"""Memory for sequences: who gets in, with what the prompt cache knows already, and what goes when it is short."""

from __future__ import annotations

import math

from mlxcel.engine.cache.prompt_cache import PromptCache
from mlxcel.engine.cache.storage import KvStorage
from mlxcel.engine.sequence import Sequence


class Admission:
    """Lets sequences into `storage`.

    watermark: share of the budget that must stay free while rows are decoded, for them to grow into.
    """

    def __init__(self, storage: KvStorage, cache: PromptCache, watermark: float) -> None:
        self._storage = storage
        self._cache = cache
        self._margin = math.ceil(watermark * (storage.memory.budget or 0))

    def admit(self, sequence: Sequence, running: tuple[Sequence, ...]) -> bool:
        """Begin a sequence if its tokens fit; cached prefixes are given up for it as needed.

        running: what is being decoded, which it may begin like. When that is nothing it always begins: waiting would
        not help.
        """
        cached = self._begin(sequence, running)
        needed = self._storage.growth(sequence.key, len(sequence.tokens) - cached)
        if not self._make_room(needed + self._margin if running else needed) and running:
            self._storage.discard(sequence.key)
            return False
        if not sequence.started:
            self._cache.record(sequence, cached)
        sequence.boundary = self._cache.boundary(sequence)
        sequence.start(cached)
        return True

    def _begin(self, sequence: Sequence, running: tuple[Sequence, ...]) -> int:
        """Take over what is known of a sequence; how many tokens that is."""
        match = self._cache.find(sequence)
        cached = 0 if match is None else match.length
        # Requests that come together begin alike before any of them has ended.
        like, shared = self._cache.find_running(sequence, running)
        if like is not None and shared > cached:
            state = self._storage.save(like.key, shared)
            if state is not None:
                self._storage.adopt(sequence.key, state, shared)
                self._storage.drop(state)
                return shared
        if match is not None:
            self._storage.adopt(sequence.key, match.entry.state, cached)
        return cached

    def _make_room(self, needed: int) -> bool:
        while True:
            memory = self._storage.memory
            if memory.budget is None or memory.used + needed <= memory.budget:
                return True
            if not self._cache.reclaim():
                return False
