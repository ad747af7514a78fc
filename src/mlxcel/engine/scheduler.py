"""Who runs next: the queue, the slots, and the rule by which prefill and decode share the model.

Pure bookkeeping: no model, no clock, no threads, so that its promises can be tested by driving it.

A prompt longer than a chunk is prefilled piece by piece ("parked" in between), and decoding rows get
`grant_interval` steps between two pieces. With C pieces, a decode step of D and a piece of P seconds, the prompt is
ready after at most C * (grant_interval * D + P), and a running stream never waits longer than D + P for a token: there
is a decode step between any two prefill steps, also those of different prompts. Beside rows, pieces are as small as
`mlxcel.engine.pace` says, which bounds P.

A sequence needs a slot and memory. When the first one in the queue does not get memory, it is asked again once another
one has left; nobody overtakes it. A sequence that had to give its place back keeps its place in the order of arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from mlxcel.engine.cache.retention import Retention
from mlxcel.engine.pace import Pace
from mlxcel.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prefill:
    """Put `sequence`'s tokens [start, end) into its cache; `last`: it joins the decode batch afterwards.

    granted: it goes on with a prompt while rows wait.
    """

    sequence: Sequence
    start: int
    end: int
    last: bool
    granted: bool = False


@dataclass(frozen=True, slots=True)
class Decode:
    """Advance every row by one token."""

    rows: tuple[Sequence, ...]


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take the place of a row for a waiting sequence of higher priority."""

    sequence: Sequence


Step = Prefill | Decode | Preempt

Admit = Callable[[Sequence], bool]
"""Whether a sequence gets memory. It may have to wait while rows are being decoded."""


class Scheduler:
    """Queue and slots of one worker.

    slots: rows of the decode batch, at least 1.
    chunk: prompt tokens per prefill step, at the most; 0: the whole prompt at once.
    grant_interval: decode steps between two chunks of a parked prompt; 0: it waits until the batch is empty.
    preemption: a waiting sequence may take the place of a row of lower priority. retention: what is kept of a sequence,
    between whose losses pieces end; None: all.
    """

    def __init__(
        self,
        *,
        slots: int,
        chunk: int,
        grant_interval: int,
        preemption: bool = False,
        retention: Retention | None = None,
    ) -> None:
        self._slots = slots
        self._chunk = chunk
        self._grant_interval = grant_interval
        self._pace = Pace(chunk, grant_interval)
        self._preemption = preemption
        self._retention = retention
        self._queue: list[tuple[int, int, Sequence]] = []  # heap of (priority, arrival, sequence)
        self._arrivals = 0
        self._parked: Sequence | None = None
        self._rows: list[Sequence] = []
        self._decoded_since_prefill = 0
        self._refused: Sequence | None = None  # got no memory, and nobody has left since

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
        sequence.arrival = self._arrivals
        self._enqueue(sequence)

    def next_step(self, admit: Admit = lambda sequence: True) -> Step | None:
        """The next thing to do, or None when idle. Report it with `prefilled`, `decoded` or `requeue`, or `remove` its
        sequences."""
        if self._rows and self._decoded_since_prefill == 0:
            return Decode(self.rows)
        if self._parked is not None:
            if self._rows and not self._grant_due():
                return Decode(self.rows)
            return self._prefill(self._parked, granted=bool(self._rows))
        if self._queue:
            first = self._queue[0][2]
            if self._may_enter(first, admit):
                heapq.heappop(self._queue)
                self._parked = first
                return self._prefill(first)
            if self._preemption and self._rows:
                victim = max(self._rows, key=_precedence)
                if victim.request.priority > first.request.priority:
                    return Preempt(victim)
        return Decode(self.rows) if self._rows else None

    def prefilled(self, step: Prefill, seconds: float = 0.0) -> None:
        """A prefill step was done; after the last one the sequence is the batch's last row.

        seconds: what it took; 0 when nobody looked.
        """
        self._pace.read(step.end - step.start, step.end, seconds)
        step.sequence.prefilled = step.end
        self._decoded_since_prefill = 0
        if step.last:
            self._parked = None
            self._rows.append(step.sequence)

    def decoded(self, seconds: float = 0.0) -> None:
        """A decode step was done."""
        self._pace.decoded(seconds)
        self._decoded_since_prefill += 1

    def last_in(self) -> Sequence:
        """Of those that run, the last to arrive of the lowest priority."""
        return max(self._running(), key=_precedence)

    def requeue(self, sequence: Sequence, *, for_memory: bool = False) -> None:
        """A running sequence lost its place and its cache.

        for_memory: so that others can go on; it waits until one of them has left.
        """
        self._take_out(sequence)
        self._enqueue(sequence)
        self._refused = self._queue[0][2] if for_memory else None

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        self._take_out(sequence)
        self._refused = None

    def restart_parked(self) -> None:
        """The caches are gone: the prompt being prefilled begins again."""
        if self._parked is not None:
            self._parked.prefilled = 0

    def sequences(self) -> list[Sequence]:
        """Everything that waits or runs, in no particular order."""
        return [*self._running(), *(entry[2] for entry in self._queue)]

    def _running(self) -> list[Sequence]:
        return self._rows if self._parked is None else [*self._rows, self._parked]

    def _enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._queue, (*_precedence(sequence), sequence))

    def _take_out(self, sequence: Sequence) -> None:
        if sequence is self._parked:
            self._parked = None
            self._decoded_since_prefill = 0  # it may leave because a step failed, which took its time
        elif sequence in self._rows:
            self._rows.remove(sequence)
        else:
            self._queue = [entry for entry in self._queue if entry[2] is not sequence]
            heapq.heapify(self._queue)

    def _may_enter(self, first: Sequence, admit: Admit) -> bool:
        if len(self._rows) >= self._slots or (first is self._refused and self._rows):
            return False
        if admit(first):
            return True
        self._refused = first
        return False

    def _grant_due(self) -> bool:
        return self._grant_interval > 0 and self._decoded_since_prefill >= self._grant_interval

    def _prefill(self, sequence: Sequence, *, granted: bool = False) -> Prefill:
        start, length = sequence.prefilled, sequence.prefill_length
        most = self._pace.piece(start) if self._rows else self._chunk
        end = min(length, start + most) if most > 0 else length
        if self._retention is not None:
            end = min(end, self._retention.piece_end(start))
        if sequence.boundary is not None and start < sequence.boundary < end:
            end = sequence.boundary
        return Prefill(sequence, start, end, last=end == length, granted=granted)


def _precedence(sequence: Sequence) -> tuple[int, int]:
    """Lower goes first."""
    return sequence.request.priority, sequence.arrival
