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

    def admit(self, sequence: Sequence, decoding: bool) -> bool:
        """Begin a sequence if its tokens fit; cached prefixes are given up for it as needed.

        When nothing is being decoded it always begins: waiting would not help.
        """
        match = self._cache.find(sequence)
        cached = 0
        if match is not None:
            cached = match.length
            self._storage.adopt(sequence.key, match.entry.state, cached)
        needed = self._storage.growth(sequence.key, len(sequence.tokens) - cached)
        if not self._make_room(needed + self._margin if decoding else needed) and decoding:
            self._storage.discard(sequence.key)
            return False
        if not sequence.started:
            self._cache.record(sequence, match)
        sequence.boundary = self._cache.boundary(sequence)
        sequence.start(cached)
        return True

    def _make_room(self, needed: int) -> bool:
        while True:
            memory = self._storage.memory
            if memory.budget is None or memory.used + needed <= memory.budget:
                return True
            if not self._cache.reclaim():
                return False
