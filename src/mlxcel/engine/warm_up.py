"""Reading ahead while nothing else is to be done: what a conversation's next prompt will begin with.

The state after a chat's history is there (`mlxcel.engine.cache.prompt_cache`), but the answer that followed, as the
template writes it once it is history, has not been read yet. Whoever comes meanwhile waits for one piece at most, and
what was read until then is kept.
"""

from __future__ import annotations

import logging
from collections import deque

from mlxcel.engine.backend import Backend
from mlxcel.engine.cache.prompt_cache import PromptCache
from mlxcel.engine.sequence import Sequence

log = logging.getLogger(__name__)

KEY = -3
"""Of the sequence that is read."""
PIECE = 256
"""Tokens read at once."""
_MOST_WAITING = 8


class WarmUp:
    """Extends states of `cache`. Belongs to the worker thread."""

    def __init__(self, backend: Backend, cache: PromptCache) -> None:
        self._backend = backend
        self._cache = cache
        self._waiting: deque[Sequence] = deque(maxlen=_MOST_WAITING)
        self._current: Sequence | None = None

    @property
    def pending(self) -> bool:
        """Whether there is something to read."""
        return self._current is not None or bool(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Read a sequence, which has the key `KEY`, up to the end of its history, when there is time. Of those that
        wait the last ones count."""
        self._waiting.append(sequence)

    def step(self) -> None:
        """Read one piece. What cannot be read is given up."""
        try:
            if self._current is None:
                self._begin(self._waiting.popleft())
            else:
                self._read(self._current)
        except MemoryError:
            self._end()
        except Exception:
            log.exception("reading ahead failed")
            self._end()

    def interrupt(self) -> None:
        """Somebody has come: keep what has been read."""
        if self._current is not None:
            self._keep(self._current)

    def _begin(self, sequence: Sequence) -> None:
        match, end = self._cache.find(sequence), self._cache.boundary(sequence)
        # Only a state that is there is extended: to read everything again is what a request may ask for.
        if match is not None and end is not None and match.length < end:
            storage = self._backend.kv
            self._current = sequence
            storage.adopt(KEY, match.entry.state, match.length)
            sequence.start(match.length)
            sequence.boundary = end

    def _read(self, sequence: Sequence) -> None:
        assert sequence.boundary is not None
        start = sequence.prefilled
        end = min(start + PIECE, sequence.boundary)
        retention = self._backend.info.retention
        if retention is not None:
            end = min(end, retention.piece_end(start))
        memory, growth = self._backend.kv.memory, self._backend.kv.growth(KEY, end - start)
        if memory.budget is not None and memory.used + growth > memory.budget:
            raise MemoryError
        self._backend.prefill(KEY, sequence.tokens[start:end])
        sequence.prefilled = end
        if end == sequence.boundary:
            self._keep(sequence)

    def _keep(self, sequence: Sequence) -> None:
        sequence.boundary = sequence.prefilled
        try:
            self._cache.keep_ahead(sequence)
        except Exception:  # nobody has asked for it, and whoever interrupts goes on
            log.exception("what was read ahead was not kept")
        finally:
            self._end()

    def _end(self) -> None:
        self._backend.kv.discard(KEY)
        self._current = None
