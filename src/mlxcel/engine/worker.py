"""The thread that owns the model.

It alone loads, prefills, decodes and edits caches. New sequences come in through a queue, cancellation through a
flag on the `Generation`, and what happened in a step, or in a few very short ones, goes out as one batch of events.

A prompt or a row that fails ends alone. A decode step that fails ends the rows that were in it, drops all caches, and
the thread goes on; several of those in a row mean that the model is broken, and the thread gives up. Prompts that fail
count too, if a single token then fails as well. A step that lacks memory is done again, once the prompt cache or the
last sequence to arrive has given some back. A state that cannot be kept for later requests is not kept.

A step that never ends cannot be noticed here; `still_for` lets others do it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from mlxcel.engine.admission import Admission
from mlxcel.engine.backend import Backend
from mlxcel.engine.cache.prompt_cache import PromptCache
from mlxcel.engine.cache.stats import CacheStats
from mlxcel.engine.constraint import ConstraintError
from mlxcel.engine.counters import Counters
from mlxcel.engine.events import Event, Finished, FinishReason, StopKind
from mlxcel.engine.generation import Generation
from mlxcel.engine.sampling.candidates import SamplingError
from mlxcel.engine.sampling.sampler import sample
from mlxcel.engine.scheduler import Decode, Preempt, Prefill, Scheduler
from mlxcel.engine.sequence import Sequence
from mlxcel.engine.warm_up import WarmUp

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
POST_INTERVAL = 0.005
"""Seconds for which text of short steps is gathered."""

PROBE = -2
"""Key of the sequence that shows whether the model still reads."""

Post = Callable[[list[tuple[Generation, Event]]], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the thread works with, once the model is loaded."""

    backend: Backend
    scheduler: Scheduler
    cache: PromptCache
    admission: Admission


Prepare = Callable[[], Prepared]


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
        self.cache_stats: CacheStats | None = None
        """The prompt cache's numbers, None before there is one: replaced on this thread, read on any."""
        self._prepare = prepare
        self._post = post
        self._released = released
        self._died = died
        self._inbox: queue.SimpleQueue[Sequence | Callable[[], None] | None] = queue.SimpleQueue()
        self._outbox: list[tuple[Generation, Event]] = []
        self._posted = 0.0  # when the last events went out
        self._stopping = False
        self._failed_steps = 0
        self._unfit: list[tuple[Sequence, Exception]] = []  # could not even begin
        self._step_began: float | None = None

    def submit(self, sequence: Sequence) -> None:
        """Hand over a sequence (any thread)."""
        self._inbox.put(sequence)

    def warm_up(self, sequence: Sequence) -> None:
        """Read a sequence up to the end of its history, when nothing else is to be done (any thread)."""
        self._inbox.put(lambda: self._warm_up.add(sequence))

    def clear_cache(self, done: Callable[[CacheStats], None]) -> None:
        """Empty the prompt cache between two steps and pass on its numbers of before (any thread)."""

        def clear() -> None:
            before = self._cache.stats()
            self._cache.clear()
            self.cache_stats = self._cache.stats()
            done(before)

        self._inbox.put(clear)

    def stop(self) -> None:
        """End the thread after the step it is in (any thread)."""
        self._stopping = True
        self._inbox.put(None)

    @property
    def still_for(self) -> float:
        """Seconds that the step under way has taken so far; 0 while there is nothing to do (any thread)."""
        began = self._step_began
        return 0.0 if began is None else time.monotonic() - began

    def run(self) -> None:
        """Thread body."""
        try:
            self.begin()
            while not self._stopping:
                self.turn()
        except BaseException as error:  # whatever ends this thread must be told, or requests would hang
            log.debug("worker ended", exc_info=True)
            self._died(error)

    def begin(self) -> None:
        """Load the model. Like `turn` for `run`, and for tests, which have no thread."""
        prepared = self._prepare()
        self._backend, self._scheduler = prepared.backend, prepared.scheduler
        self._cache, self._admission = prepared.cache, prepared.admission
        self._warm_up = WarmUp(self._backend, self._cache)

    def turn(self) -> None:
        """Take in what has arrived, or wait for it; then do one step."""
        self._take_in()
        self._step_began = time.monotonic()
        self._drop_cancelled()
        self._step()
        if self._scheduler.idle or self._due():
            self._flush()
        self._step_began = None

    def _take_in(self) -> None:
        """Queue what has arrived; sleep until something does, or the cache is to be looked at, when there is nothing to
        do."""
        try:
            while not self._stopping:
                idle = self._scheduler.idle and not self._warm_up.pending
                item = self._inbox.get(block=idle, timeout=self._sleep if idle else None)
                if isinstance(item, Sequence):
                    self._warm_up.interrupt()
                    self._scheduler.add(item)
                elif item is not None:
                    item()
        except queue.Empty:
            if self._scheduler.idle:
                self._cache.expire()
                self.cache_stats = self._cache.stats()

    @property
    def _sleep(self) -> float | None:
        """Seconds until the cache is to be looked at, no more than a thread can wait; None: never."""
        seconds = self._cache.expires_in
        return None if seconds is None else min(seconds, threading.TIMEOUT_MAX)

    def _drop_cancelled(self) -> None:
        for sequence in self._scheduler.sequences():
            if sequence.generation.cancelled:
                self._release([sequence])

    def _step(self) -> None:
        step = self._scheduler.next_step(self._admit)
        self._count_active()  # a step may be long, and who is in it is known now
        if self._unfit:
            self._refuse_unfit()
        elif isinstance(step, Prefill):
            self._prefill(step)
        elif isinstance(step, Decode):
            self._decode(step)
        elif isinstance(step, Preempt):
            self._requeue(step.sequence)
        elif self._warm_up.pending:
            self._warm_up.step()
            self.cache_stats = self._cache.stats()
        self._count_active()

    def _count_active(self) -> None:
        self.counters.active = self._scheduler.active
        self.counters.rows = len(self._scheduler.rows)

    def _admit(self, sequence: Sequence) -> bool:
        first, running = not sequence.started, self._scheduler.rows
        try:
            if not self._admission.admit(sequence, running):
                return False
        except Exception as error:
            self._backend.kv.discard(sequence.key)
            # Without memory it waits for what others give back, as long as there are any.
            if not isinstance(error, MemoryError) or not (running or self._cache.reclaim()):
                self._unfit.append((sequence, error))
            return False
        self.counters.started += first
        self.cache_stats = self._cache.stats()
        return True

    def _refuse_unfit(self) -> None:
        """End the sequences that could not begin. The step that was to be done is found again without them."""
        for sequence, error in self._unfit:
            log.error("a sequence cannot begin", exc_info=error)
            self._post_events(sequence, self._failure(sequence, error))
        self._release([sequence for sequence, _ in self._unfit])
        self._unfit.clear()

    def _prefill(self, step: Prefill) -> None:
        sequence = step.sequence
        if sequence.exhausted:  # a budget of nothing
            self.counters.completed += 1
            self._post_events(sequence, sequence.finish(FinishReason.LENGTH, StopKind.LIMIT))
            self._release([sequence])
            return
        self._flush()  # a prefill may take long
        began = time.perf_counter()
        try:
            if step.end > step.start:
                self._backend.prefill(sequence.key, sequence.tokens[step.start : step.end])
            if step.last:
                self._backend.join(sequence.key)
        except MemoryError as error:
            self._make_room(error)
            return
        except Exception as error:
            log.exception("prefill failed")
            self._post_events(sequence, self._failure(sequence, error))
            self._release([sequence])
            self._probe()
            return
        seconds = time.perf_counter() - began
        self._scheduler.prefilled(step, seconds)
        self.counters.prefill_seconds += seconds
        self.counters.prefill_chunks += 1
        self.counters.prefill_grants += step.granted
        self.counters.prefill_tokens += step.end - step.start + step.last  # the last token goes through decode
        if step.end == sequence.boundary:
            self._keep(self._cache.keep_boundary, sequence)

    def _decode(self, step: Decode) -> None:
        began = time.perf_counter()
        try:
            try:
                logits = self._backend.decode([sequence.next_input for sequence in step.rows])
            except MemoryError as error:
                self._make_room(error)
                return
            outcomes = sample(step.rows, logits, self._backend.logit_rows)
        except Exception as error:
            log.exception("decode step failed")
            self._fail_batch(step.rows, error)
            return
        self._failed_steps = 0
        seconds = time.perf_counter() - began
        self._scheduler.decoded(seconds)
        self.counters.decode_seconds += seconds
        self.counters.decode_steps += 1
        self.counters.decode_rows += len(step.rows)
        ended: list[Sequence] = []
        for sequence, outcome in zip(step.rows, outcomes, strict=True):
            before = sequence.generated
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                events = sequence.advance(outcome)
            except Exception as error:
                expected = isinstance(error, SamplingError | ConstraintError)
                log.warning("a row cannot be sampled: %s", error, exc_info=not expected)
                events = self._failure(sequence, error)
            self.counters.decode_tokens += sequence.generated - before
            self._post_events(sequence, events)
            if events and isinstance(events[-1], Finished):
                ended.append(sequence)
                if events[-1].reason is not FinishReason.ERROR:
                    self.counters.completed += 1
                    self._keep(self._cache.donate, sequence)
        self._release(ended)
        for sequence in step.rows:
            if sequence.full and sequence not in ended:
                self._shift(sequence)

    def _shift(self, sequence: Sequence) -> None:
        """Make room in a full context; the sequence goes on once it has been read again."""
        if sequence.push_out():
            self._requeue(sequence)
            return
        self.counters.completed += 1
        self._post_events(sequence, sequence.finish(FinishReason.LENGTH, StopKind.LIMIT))
        self._keep(self._cache.donate, sequence)
        self._release([sequence])

    def _keep(self, keep: Callable[[Sequence], None], sequence: Sequence) -> None:
        """Keep a state for later requests, if that goes well: this one does not need it."""
        try:
            keep(sequence)
        except Exception:
            log.exception("a state was not kept for the prompt cache")

    def _probe(self) -> None:
        """A prompt failed: see whether that was the prompt, or the model reads nothing any more."""
        try:
            self._backend.prefill(PROBE, [min(self._backend.info.tokenizer.eos_token_ids, default=0)])
        except MemoryError:
            pass
        except Exception as error:
            self._count_failure(error)
        finally:
            self._backend.kv.discard(PROBE)

    def _make_room(self, error: MemoryError) -> None:
        """A step lacked memory and will be tried again: find some."""
        if self._cache.reclaim():
            return
        last = self._scheduler.last_in()
        if self._scheduler.active > 1:
            log.debug("memory is short: a sequence of %d tokens has to wait", len(last.tokens))
            self._requeue(last, for_memory=True)
        else:
            log.error("there is no memory for a single sequence of %d tokens", len(last.tokens))
            self._post_events(last, self._failure(last, error))
            self._release([last])

    def _requeue(self, sequence: Sequence, *, for_memory: bool = False) -> None:
        """Take a running sequence's place and memory; it waits until it can go on."""
        self._evict([sequence])
        self._scheduler.requeue(sequence, for_memory=for_memory)

    def _fail_batch(self, rows: tuple[Sequence, ...], error: Exception) -> None:
        """A decode step failed: its rows end, and as nobody knows what the caches hold now, they all go."""
        for sequence in rows:
            self._post_events(sequence, self._failure(sequence, error))
            self._scheduler.remove(sequence)
            self._released()
        self._backend.reset()
        self._scheduler.restart_parked()
        self.cache_stats = self._cache.stats()
        self._count_failure(error)

    def _count_failure(self, error: Exception) -> None:
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
        self._evict(sequences)
        for sequence in sequences:
            self._scheduler.remove(sequence)
            self._released()
        self.cache_stats = self._cache.stats()

    def _evict(self, sequences: list[Sequence]) -> None:
        """Take sequences out of the backend, which the scheduler still has."""
        rows = self._scheduler.rows
        for sequence in sequences:
            if sequence not in rows:
                self._backend.kv.discard(sequence.key)
        keep = [index for index, row in enumerate(rows) if row not in sequences]
        if len(keep) < len(rows):
            self._backend.leave(keep)

    def _due(self) -> bool:
        """Whether events go out now. Every delivery wakes the event loop, which takes a processor from the next step:
        text of very short ones may wait for another."""
        return time.monotonic() - self._posted >= POST_INTERVAL or any(
            isinstance(event, Finished) for _, event in self._outbox
        )

    def _flush(self) -> None:
        if self._outbox:
            self._posted = time.monotonic()
            batch, self._outbox = self._outbox, []
            self._post(batch)
