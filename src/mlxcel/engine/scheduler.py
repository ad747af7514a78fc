"""Who runs next: the queue, the slots, and the rule by which prefill and decode share the model.

Pure bookkeeping: no model, no clock, no threads, so that its promises can be tested by driving it.

A prompt longer than a chunk is prefilled piece by piece ("parked" in between), and decoding rows get at least
`grant_interval` steps between two pieces. With C chunks, a decode step of D and a chunk of P seconds, the prompt is
ready after at most C * (grant_interval * D + P), and a running stream never waits longer than D + P for a token.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from mlxcel.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prefill:
    """Put `sequence`'s prompt tokens [start, end) into its cache; `last`: it joins the decode batch afterwards."""

    sequence: Sequence
    start: int
    end: int
    last: bool


@dataclass(frozen=True, slots=True)
class Decode:
    """Advance every row by one token."""

    rows: tuple[Sequence, ...]


Step = Prefill | Decode


class Scheduler:
    """Queue and slots of one worker.

    slots: rows of the decode batch, at least 1.
    chunk: prompt tokens per prefill step; 0: the whole prompt at once.
    grant_interval: decode steps between two chunks of a parked prompt; 0: it waits until the batch is empty.
    """

    def __init__(self, *, slots: int, chunk: int, grant_interval: int) -> None:
        self._slots = slots
        self._chunk = chunk
        self._grant_interval = grant_interval
        self._queue: list[tuple[int, int, Sequence]] = []  # heap of (priority, arrival, sequence)
        self._arrivals = 0
        self._parked: Sequence | None = None
        self._rows: list[Sequence] = []
        self._decoded_since_grant = 0

    @property
    def rows(self) -> tuple[Sequence, ...]:
        """Sequences being decoded, in the order of the backend's rows."""
        return tuple(self._rows)

    @property
    def active(self) -> int:
        """Slots in use: decoding rows and the prompt being prefilled."""
        return len(self._rows) + (self._parked is not None)

    @property
    def queued(self) -> int:
        """Sequences that wait for a slot."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """True when nothing waits and nothing runs."""
        return not (self._queue or self._rows or self._parked)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence behind those of its priority."""
        self._arrivals += 1
        heapq.heappush(self._queue, (sequence.request.priority, self._arrivals, sequence))

    def next_step(self) -> Step | None:
        """The next thing to do, or None when idle. Report it with `prefilled` or `decoded`, or `remove` its
        sequences."""
        if self._parked is not None:
            if self._rows and not self._grant_due():
                return Decode(self.rows)
            return self._prefill(self._parked)
        if self._queue and len(self._rows) < self._slots:
            self._parked = heapq.heappop(self._queue)[2]
            return self._prefill(self._parked)
        return Decode(self.rows) if self._rows else None

    def prefilled(self, step: Prefill) -> None:
        """A prefill step was done; after the last one the sequence is the batch's last row."""
        step.sequence.prefilled = step.end
        self._decoded_since_grant = 0
        if step.last:
            self._parked = None
            self._rows.append(step.sequence)

    def decoded(self) -> None:
        """A decode step was done."""
        self._decoded_since_grant += 1

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        if sequence is self._parked:
            self._parked = None
        elif sequence in self._rows:
            self._rows.remove(sequence)
        else:
            self._queue = [entry for entry in self._queue if entry[2] is not sequence]
            heapq.heapify(self._queue)

    def restart_parked(self) -> None:
        """The caches are gone: the prompt being prefilled begins again."""
        if self._parked is not None:
            self._parked.prefilled = 0

    def sequences(self) -> list[Sequence]:
        """Everything that waits or runs, in no particular order."""
        parked = [] if self._parked is None else [self._parked]
        return [*self._rows, *parked, *(entry[2] for entry in self._queue)]

    def _grant_due(self) -> bool:
        return self._grant_interval > 0 and self._decoded_since_grant >= self._grant_interval

    def _prefill(self, sequence: Sequence) -> Prefill:
        start, length = sequence.prefilled, sequence.prefill_length
        end = length if self._chunk <= 0 else min(length, start + self._chunk)
        return Prefill(sequence, start, end, last=end == length)
