"""The thread that owns the model.

It alone loads, prefills, decodes and edits caches. New sequences come in through a queue, cancellation through a
flag on the `Generation`, and what happened in a step goes out as one batch of events.

A prompt or a row that fails ends alone. A decode step that fails ends the rows that were in it, drops all caches, and
the thread goes on; several of those in a row mean that the model is broken, and the thread gives up.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from mlxcel.engine.backend import Backend
from mlxcel.engine.counters import Counters
from mlxcel.engine.events import Event, Finished, FinishReason, StopKind
from mlxcel.engine.generation import Generation
from mlxcel.engine.sampling.candidates import SamplingError
from mlxcel.engine.sampling.rows import make_rows
from mlxcel.engine.sampling.sampler import sample
from mlxcel.engine.scheduler import Decode, Prefill, Scheduler
from mlxcel.engine.sequence import Sequence

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3

Post = Callable[[list[tuple[Generation, Event]]], None]
Prepare = Callable[[], tuple[Backend, Scheduler]]


class Worker(threading.Thread):
    """Loads a model and runs it until `stop`.

    prepare: loads the model and says how to schedule it; called on this thread.
    post: takes a step's events; called on this thread.
    released: called once for each sequence that left, however it ended.
    died: called with the cause when the thread gives up.
    """

    def __init__(
        self,
        prepare: Prepare,
        *,
        post: Post,
        released: Callable[[], None],
        died: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="mlxcel-worker", daemon=True)
        self.counters = Counters()
        self._prepare = prepare
        self._post = post
        self._released = released
        self._died = died
        self._inbox: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()
        self._outbox: list[tuple[Generation, Event]] = []
        self._stopping = False
        self._failed_steps = 0

    def submit(self, sequence: Sequence) -> None:
        """Hand over a sequence (any thread)."""
        self._inbox.put(sequence)

    def stop(self) -> None:
        """End the thread after the step it is in (any thread)."""
        self._stopping = True
        self._inbox.put(None)

    def run(self) -> None:
        """Thread body."""
        try:
            self._backend, self._scheduler = self._prepare()
            self._rows = make_rows(self._backend.info.threads)
            while not self._stopping:
                self._take_in()
                self._drop_cancelled()
                self._step()
                self._flush()
        except BaseException as error:  # whatever ends this thread must be told, or requests would hang
            log.debug("worker ended", exc_info=True)
            self._died(error)

    def _take_in(self) -> None:
        """Queue what has arrived; sleep until something does when there is nothing to do."""
        try:
            while not self._stopping:
                sequence = self._inbox.get(block=self._scheduler.idle)
                if sequence is not None:
                    self._scheduler.add(sequence)
        except queue.Empty:
            pass

    def _drop_cancelled(self) -> None:
        for sequence in self._scheduler.sequences():
            if sequence.generation.cancelled:
                self._release([sequence])

    def _step(self) -> None:
        step = self._scheduler.next_step()
        if isinstance(step, Prefill):
            self._prefill(step)
        elif isinstance(step, Decode):
            self._decode(step)
        self.counters.active = self._scheduler.active
        self.counters.rows = len(self._scheduler.rows)

    def _prefill(self, step: Prefill) -> None:
        sequence = step.sequence
        if step.start == 0:
            sequence.start()
            self.counters.started += 1
        if sequence.exhausted:  # a budget of nothing
            self.counters.completed += 1
            self._post_events(sequence, sequence.finish(FinishReason.LENGTH, StopKind.LIMIT))
            self._release([sequence])
            return
        try:
            if step.end > step.start:
                self._backend.prefill(sequence.key, sequence.request.prompt[step.start : step.end])
            if step.last:
                self._backend.join(sequence.key)
        except Exception as error:
            log.exception("prefill failed")
            self._post_events(sequence, self._failure(sequence, error))
            self._release([sequence])
            return
        self.counters.prefill_chunks += 1
        self.counters.prefill_tokens += step.end - step.start + step.last  # the last token goes through decode
        self._scheduler.prefilled(step)

    def _decode(self, step: Decode) -> None:
        try:
            logits = self._backend.decode([sequence.next_input for sequence in step.rows])
            outcomes = sample(step.rows, logits, self._rows)
        except Exception as error:
            log.exception("decode step failed")
            self._fail_batch(step.rows, error)
            return
        self._failed_steps = 0
        self._scheduler.decoded()
        self.counters.decode_steps += 1
        ended: list[Sequence] = []
        for sequence, outcome in zip(step.rows, outcomes, strict=True):
            before = sequence.generated
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                events = sequence.advance(outcome)
            except Exception as error:
                log.warning("a row cannot be sampled: %s", error, exc_info=not isinstance(error, SamplingError))
                events = self._failure(sequence, error)
            self.counters.decode_tokens += sequence.generated - before
            self._post_events(sequence, events)
            if events and isinstance(events[-1], Finished):
                self.counters.completed += events[-1].reason is not FinishReason.ERROR
                ended.append(sequence)
        self._release(ended)

    def _fail_batch(self, rows: tuple[Sequence, ...], error: Exception) -> None:
        """A decode step failed: its rows end, and as nobody knows what the caches hold now, they all go."""
        for sequence in rows:
            self._post_events(sequence, self._failure(sequence, error))
            self._scheduler.remove(sequence)
            self._released()
        self._backend.reset()
        self._scheduler.restart_parked()
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            self._flush()
            raise error

    def _failure(self, sequence: Sequence, error: Exception) -> list[Event]:
        return sequence.finish(FinishReason.ERROR, StopKind.NONE, f"inference backend error: {error}")

    def _post_events(self, sequence: Sequence, events: list[Event]) -> None:
        self._outbox.extend((sequence.generation, event) for event in events)

    def _release(self, sequences: list[Sequence]) -> None:
        """Take sequences out of the scheduler and the backend."""
        if not sequences:
            return
        rows = self._scheduler.rows
        keep = [index for index, row in enumerate(rows) if row not in sequences]
        for sequence in sequences:
            if sequence not in rows:
                self._backend.discard(sequence.key)
            self._scheduler.remove(sequence)
            self._released()
        if len(keep) < len(rows):
            self._backend.leave(keep)

    def _flush(self) -> None:
        if self._outbox:
            batch, self._outbox = self._outbox, []
            self._post(batch)
