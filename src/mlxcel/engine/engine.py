"""The handle that the front ends hold: submit requests, read their events, ask for numbers."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxcel.config import MIN_SLOT_CONTEXT, CacheConfig, EngineConfig
from mlxcel.engine.admission import Admission
from mlxcel.engine.backend import Backend, ModelInfo
from mlxcel.engine.cache.prompt_cache import PromptCache
from mlxcel.engine.cache.stats import CacheStats, empty_stats
from mlxcel.engine.errors import (
    AllBanned,
    BadConfig,
    Busy,
    Closing,
    ContextOverflow,
    Dead,
    EngineError,
    Loading,
    OverBudget,
    Stuck,
    UnknownToken,
)
from mlxcel.engine.events import Event, Finished, FinishReason, StopKind, Timings, Usage
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, SamplingParams
from mlxcel.engine.scheduler import Scheduler
from mlxcel.engine.sequence import ContextShift
from mlxcel.engine.sequence import Sequence as EngineSequence
from mlxcel.engine.warm_up import KEY
from mlxcel.engine.worker import Prepared, Worker

log = logging.getLogger(__name__)

PREFILL_CHUNK = {"cpu": 512}
DEFAULT_PREFILL_CHUNK = 2048

WATCH_INTERVAL = 1.0
"""Seconds between two looks at a worker that stands still."""
LOOP_PATIENCE = 0.1
"""Seconds that the worker waits for the event loop to take a step's events, before it comes with more."""
CLOSE_GRACE = 1.0
"""Seconds for the worker to say its last, before it is no longer waited for by those who read events."""


class EngineState(enum.Enum):
    """Life of an engine."""

    LOADING = "loading"
    READY = "ready"
    STUCK = "stuck"
    """READY, but a step has lasted too long. It may still end."""
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Numbers for `/health` and `/metrics`; exact at rest, and at most one step old under load."""

    active_sequences: int
    queue_depth: int
    max_batch_size: int
    sequences_started: int
    sequences_completed: int
    total_prefill_tokens: int
    total_decode_tokens: int
    decode_steps_processed: int
    prefill_chunks_processed: int
    current_batch_size: int
    cache_pool_active: int
    prefill_grants: int
    decode_rows: int
    """Rows of all decode steps together."""
    prefill_seconds: float
    decode_seconds: float


class Engine:
    """One model, one worker thread, one event loop.

    config: slots, context, scheduling. Raises BadConfig when a slot would get too little context.
    load: makes the backend; called on the worker thread. cache: what is kept between requests.
    """

    def __init__(self, config: EngineConfig, load: Callable[[], Backend], cache: CacheConfig | None = None) -> None:
        if config.ctx_size > 0 and config.ctx_size // config.slots < MIN_SLOT_CONTEXT:
            raise BadConfig(
                f"a context of {config.ctx_size} tokens leaves {config.ctx_size // config.slots} for each of "
                f"{config.slots} slots; at least {MIN_SLOT_CONTEXT} are needed (raise --ctx-size or lower --parallel)"
            )
        self._config = config
        self._load = load
        self._cache = cache or CacheConfig()
        self._info: ModelInfo | None = None
        self._slots = config.slots
        self._failure: BaseException | None = None
        self._closing = False
        self._close_by: float | None = None
        self._watcher: asyncio.TimerHandle | None = None
        self._keys = itertools.count()
        self._in_flight = 0
        self._in_flight_lock = threading.Lock()
        self._resets: set[asyncio.Future[CacheStats]] = set()
        self._live: weakref.WeakSet[Generation] = weakref.WeakSet()
        self._delivered = threading.Event()
        self._delivered.set()
        self._worker = Worker(self._prepare, post=self._post, released=self._released, died=self._died)

    def start(self) -> None:
        """Start the worker thread, which loads the model first. Call it inside the event loop that reads events."""
        self._loop = asyncio.get_running_loop()
        self._settled = asyncio.Event()
        self._watcher = self._loop.call_later(self._config.stuck_after, self._watch)
        self._worker.start()

    async def wait_ready(self) -> ModelInfo:
        """Wait until the model is loaded. Raises what loading raised."""
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure
        return self.info

    @property
    def state(self) -> EngineState:
        """LOADING until the model is there, DEAD once the worker has ended."""
        if self._failure is not None or (self._info is not None and not self._worker.is_alive()):
            return EngineState.DEAD
        if self._info is None:
            return EngineState.LOADING
        return EngineState.STUCK if self._worker.still_for >= self._config.stuck_after else EngineState.READY

    @property
    def info(self) -> ModelInfo:
        """The loaded model. Raises Loading, Dead or Stuck when nothing can be had of it."""
        state = self.state
        if state is EngineState.DEAD:
            raise Dead(str(self._failure or ""))
        if state is EngineState.STUCK:
            raise Stuck
        if self._info is None:
            raise Loading
        return self._info

    @property
    def outage(self) -> EngineError | None:
        """Why sequences have ended with an error, where it is for no reason of their own."""
        if self._closing:
            return Closing()
        return {EngineState.DEAD: Dead(), EngineState.STUCK: Stuck()}.get(self.state)

    @property
    def slots(self) -> int:
        """Decode slots; 1 when the model's caches cannot be batched."""
        return self._slots

    @property
    def slot_context(self) -> int:
        """Tokens each slot has for prompt and generation together. Raises what `info` raises."""
        return self._config.slot_context(self.info.context_window, self._slots)

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Queue all of `requests` or none (event-loop thread only).

        Raises Loading, Dead, Stuck, Closing, ContextOverflow (a prompt leaves no room for a single token in a slot),
        OverBudget (or in memory), UnknownToken (in a prompt or a bias), AllBanned (no token is left to sample) or Busy
        (too little room in the queue), before anything is queued.
        """
        info, context = self.info, self.slot_context
        if self._closing:
            raise Closing
        for request in requests:
            if len(request.prompt) >= context:
                raise ContextOverflow(len(request.prompt), context)
            if (limit := info.kv_limit) and len(request.prompt) >= limit.tokens:
                raise OverBudget(limit.bytes * len(request.prompt) // limit.tokens, limit.bytes)
            _check_tokens("prompt", request.prompt, info.vocabulary)
            _check_tokens("logit_bias", [token for token, _ in request.sampling.logit_bias], info.vocabulary)
            if _bans_all(request.sampling, info):
                raise AllBanned
        sequences = [self._sequence(request, info, context) for request in requests]
        with self._in_flight_lock:
            if self._in_flight + len(requests) > self._slots + self._config.max_queue_depth:
                raise Busy
            self._in_flight += len(requests)
        for sequence in sequences:
            self._live.add(sequence.generation)
            self._worker.submit(sequence)
        return [sequence.generation for sequence in sequences]

    def warm_up(self, request: GenerationRequest) -> None:
        """Read the history of `request` for later ones that begin with it, once nothing else is to be done.

        Nothing is generated, and nothing happens where that would be of no use (event-loop thread only).
        """
        if self.state is not EngineState.READY or self._closing or not self._cache.warm_up:
            return
        if len(request.prompt) < self.slot_context:
            self._worker.warm_up(EngineSequence(KEY, request, Generation(request), self.info.tokenizer, 0))

    def snapshot(self) -> EngineSnapshot:
        """Current numbers (any thread)."""
        counters = self._worker.counters
        return EngineSnapshot(
            active_sequences=counters.active,
            queue_depth=max(0, self._in_flight - counters.active),
            max_batch_size=self._slots,
            sequences_started=counters.started,
            sequences_completed=counters.completed,
            total_prefill_tokens=counters.prefill_tokens,
            total_decode_tokens=counters.decode_tokens,
            decode_steps_processed=counters.decode_steps,
            prefill_chunks_processed=counters.prefill_chunks,
            current_batch_size=counters.rows,
            cache_pool_active=counters.active,
            prefill_grants=counters.prefill_grants,
            decode_rows=counters.decode_rows,
            prefill_seconds=counters.prefill_seconds,
            decode_seconds=counters.decode_seconds,
        )

    async def close(self, drain: float = 0.0, patience: float = 30.0) -> None:
        """Refuse new work, let running sequences end for at most `drain` seconds, then stop the worker.

        patience: seconds from the first call to wait for the step that the worker is in, unless it stands still; then
        it is left to the end of the process.
        """
        self._closing = True
        deadline = time.monotonic() + drain
        while self._in_flight and time.monotonic() < deadline and self.state is EngineState.READY:
            await asyncio.sleep(0.02)
        self._worker.stop()
        await self._join(CLOSE_GRACE)
        self._end_live(str(Closing()))
        if self._watcher is not None:
            self._watcher.cancel()
        if self._close_by is None:
            self._close_by = time.monotonic() + patience
        if self.state is not EngineState.STUCK:
            await self._join(self._close_by - time.monotonic())

    async def _join(self, seconds: float) -> None:
        if seconds > 0 and self._worker.is_alive():
            await asyncio.to_thread(self._worker.join, seconds)

    def cache_stats(self) -> CacheStats:
        """The prompt cache in numbers (any thread)."""
        return self._worker.cache_stats or empty_stats(self._cache)

    async def reset_cache(self) -> CacheStats:
        """Empty the prompt cache; its numbers of before."""
        if self.state is not EngineState.READY:
            return self.cache_stats()
        done: asyncio.Future[CacheStats] = self._loop.create_future()
        self._resets.add(done)
        done.add_done_callback(self._resets.discard)
        self._worker.clear_cache(lambda before: self._on_loop(_settle, done, before))
        return await done

    def _sequence(self, request: GenerationRequest, info: ModelInfo, context: int) -> EngineSequence:
        if info.kv_limit is not None:
            context = min(context, info.kv_limit.tokens)
        room, asked, shift = context - len(request.prompt), request.max_tokens, None
        if self._config.context_shift:
            shift = ContextShift(context, self._config.keep)
            # Without a limit of its own it ends where the model's window would have ended it.
            room = max(room, info.context_window - len(request.prompt)) if asked is None else asked
        budget = room if asked is None else min(room, asked)
        return EngineSequence(next(self._keys), request, Generation(request), info.tokenizer, budget, shift)

    # On the worker thread.

    def _prepare(self) -> Prepared:
        # Not at the top: it imports MLX, which a server does while it already answers.
        from mlxcel.engine.cache.memory import free_memory

        backend = self._load()
        info = backend.info
        if not info.can_batch:
            self._slots = 1
        chunk = self._config.prefill_chunk_size
        if chunk is None:
            chunk = PREFILL_CHUNK.get(info.device, DEFAULT_PREFILL_CHUNK)
        scheduler = Scheduler(
            slots=self._slots,
            chunk=chunk,
            grant_interval=self._config.prefill_grant_interval,
            preemption=self._config.preemption,
            retention=info.retention,
        )
        cache = PromptCache(backend.kv, self._cache, free=free_memory())
        self._worker.cache_stats = cache.stats()
        self._info = info
        self._on_loop(self._settled.set)
        return Prepared(backend, scheduler, cache, Admission(backend.kv, cache, self._cache.kv_watermark))

    def _post(self, events: list[tuple[Generation, Event]]) -> None:
        # An event loop that cannot keep up gets the interpreter for a while, instead of more and more to do.
        self._delivered.wait(LOOP_PATIENCE)
        self._delivered.clear()
        self._on_loop(self._deliver, events)

    def _released(self) -> None:
        with self._in_flight_lock:
            self._in_flight -= 1

    def _died(self, cause: BaseException) -> None:
        self._failure = cause
        if self._info is not None:  # otherwise whoever waits for the model tells it
            log.critical("the model worker has ended; nothing is generated until a restart", exc_info=cause)
        self._on_loop(self._settled.set)
        self._on_loop(self._end_live, str(Dead(str(cause))))

    def _on_loop(self, call: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(call, *args)

    # On the event loop.

    def _deliver(self, events: list[tuple[Generation, Event]]) -> None:
        for generation, event in events:
            if isinstance(event, Finished):
                self._live.discard(generation)
            generation.deliver(event)
        self._delivered.set()

    def _watch(self) -> None:
        """End the requests that a worker which stands still keeps waiting, and look again when there may be more.

        Their time runs from the beginning of the step, or from when they came: in a queue that moves, waiting is no
        fault.
        """
        limit, still = self._config.stuck_after, self._worker.still_for
        if still >= limit:
            latest = time.monotonic() - limit
            self._end_live(f"no progress for {limit:g} s", submitted_by=latest)
        self._watcher = self._loop.call_later(limit - still if still < limit else WATCH_INTERVAL, self._watch)

    def _end_live(self, message: str, submitted_by: float = math.inf) -> None:
        """Nothing more will come for the sequences that are still open: say so, or their readers would hang."""
        live = [generation for generation in self._live if not generation.cancelled]
        ended = [generation for generation in live if generation.submitted <= submitted_by]
        for generation in ended:
            usage = Usage(len(generation.request.prompt), 0)
            end = Finished(FinishReason.ERROR, StopKind.NONE, usage, Timings(0.0, 0.0, 0.0), message=message)
            generation.abandon(end)
            self._live.discard(generation)
        if ended:
            log.error("%d requests ended with an error: %s", len(ended), message)
        for reset in list(self._resets):
            _settle(reset, self.cache_stats())


def _settle(future: asyncio.Future[CacheStats], stats: CacheStats) -> None:
    if not future.done():  # its reader may have gone
        future.set_result(stats)


def _check_tokens(field: str, tokens: Sequence[int], vocabulary: int) -> None:
    for token in (min(tokens, default=0), max(tokens, default=0)):
        if not 0 <= token < vocabulary:
            raise UnknownToken(field, token, vocabulary)


def _bans_all(sampling: SamplingParams, info: ModelInfo) -> bool:
    """Whether no token is left to sample."""
    ends = info.tokenizer.eos_token_ids if sampling.ignore_eos else frozenset[int]()
    if len(sampling.logit_bias) + len(ends) < info.vocabulary:
        return False
    banned = {token for token, bias in sampling.logit_bias if bias == -math.inf}
    banned |= {token for token in ends if token < info.vocabulary}  # a tokenizer may know more than the model
    return len(banned) == info.vocabulary
