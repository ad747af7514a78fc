"""The worker and its scheduler under everything at once, one step at a time and without a thread: arrivals, priorities,
cancellations, failures and want of memory, in an order that the seed gives."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import pytest

from mlxcel.config import CacheConfig
from mlxcel.engine import worker
from mlxcel.engine.admission import Admission
from mlxcel.engine.backend import Logits
from mlxcel.engine.cache.prompt_cache import PromptCache
from mlxcel.engine.cache.storage import Reuse, SavedState
from mlxcel.engine.events import Event, Finished, FinishReason, TextPiece
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, Priority, SamplingParams
from mlxcel.engine.scheduler import Scheduler
from mlxcel.engine.sequence import ContextShift, Sequence
from mlxcel.engine.worker import MAX_FAILED_STEPS, Prepared, Worker

from .scripted import EOS, ByteTokenizer, Row, ScriptedBackend, ScriptedStorage
from .test_cache_and_memory import expected, follow

GREEDY = SamplingParams(temperature=0.0)
POISON = ord("!")
CONTEXT = 96
"""Tokens after which some sequences lose their oldest."""
MOST_ALIVE = 24
STEPS = 5_000


@dataclass(frozen=True)
class Case:
    """What the world is like."""

    slots: int = 4
    chunk: int = 8
    grant: int = 3
    preemption: bool = False
    budget: int | None = None
    reuse: Reuse = Reuse.BEGINNING
    kept: bool = True
    troubles: float = 0.0
    """How often a step fails in one of the ways there are."""


CASES = {
    "plain": Case(),
    "troubles": Case(troubles=0.03),
    "short of memory": Case(budget=40),
    "short of memory, troubles, preemption": Case(budget=40, troubles=0.02, preemption=True),
    "whole states": Case(reuse=Reuse.WHOLE, budget=60, troubles=0.01),
    "no cache, one slot": Case(slots=1, kept=False, troubles=0.02, preemption=True),
    "prompts at once": Case(chunk=0, grant=1, slots=3, budget=60),
    "prompts wait for the batch": Case(grant=0, slots=2, troubles=0.01),
}


@dataclass
class Life:
    """One request as its client sees it."""

    sequence: Sequence
    wanted: int
    events: list[Event] = field(default_factory=list)

    @property
    def end(self) -> Finished | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, Finished) else None

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextPiece))


class Trouble(ScriptedBackend):
    """A backend that fails at random, and notes what was done in a step."""

    def __init__(self, rng: random.Random, case: Case, kv: ScriptedStorage) -> None:
        super().__init__(follow=follow, kv=kv)
        self.rng, self.case = rng, case
        self.did: Counter[str] = Counter()
        self.failed_in_a_row = 0
        self.fail_prefill = self.maybe_fail_prefill
        self.fail_decode = self.maybe_fail_decode
        self.poison = POISON

    def prefill(self, key: int, tokens: Tokens[int]) -> None:
        # A single EOS: the worker wants to know whether anything can be read.
        with contextlib.nullcontext() if list(tokens) == [EOS] else self.noted("prefill"):
            super().prefill(key, tokens)

    def decode(self, tokens: Tokens[int]) -> Logits:
        with self.noted("decode"):
            return super().decode(tokens)

    @contextlib.contextmanager
    def noted(self, what: str) -> Iterator[None]:
        """Want of memory shows before any time was spent."""
        try:
            yield
            self.did[what] += 1
        except MemoryError:
            self.did["failure"] += 1
            raise
        except RuntimeError:
            self.did.update(["failure", what])
            raise

    def maybe_fail_prefill(self, tokens: Tokens[int]) -> Exception | None:
        return self.trouble() if list(tokens) != [EOS] else None

    def maybe_fail_decode(self, rows: list[Row]) -> Exception | None:
        error = self.trouble() if self.failed_in_a_row < MAX_FAILED_STEPS - 1 else None
        if not isinstance(error, MemoryError):
            self.failed_in_a_row = 0 if error is None else self.failed_in_a_row + 1
        return error

    def trouble(self) -> Exception | None:
        if self.rng.random() >= self.case.troubles:
            return None
        return self.rng.choice([MemoryError(), RuntimeError("bad step")])


class TroubledStorage(ScriptedStorage):
    """Sometimes a state can be neither kept nor taken over."""

    rng: random.Random
    troubles: float

    def save(self, key: int, length: int) -> SavedState:
        self.maybe_fail()
        return super().save(key, length)

    def adopt(self, key: int, state: SavedState, length: int) -> None:
        self.maybe_fail()
        super().adopt(key, state, length)

    def maybe_fail(self) -> None:
        if self.rng.random() < self.troubles:
            raise self.rng.choice([MemoryError(), RuntimeError("bad state")])


class World:
    """A worker without its thread, its clients, and what must hold after every step."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case, self.rng = case, random.Random(seed)
        self.kv = TroubledStorage(case.reuse, case.budget)
        self.kv.rng, self.kv.troubles = self.rng, case.troubles
        self.backend = Trouble(self.rng, case, self.kv)
        self.scheduler = Scheduler(
            slots=case.slots, chunk=case.chunk, grant_interval=case.grant, preemption=case.preemption
        )
        config = CacheConfig(min_prefix=4, apc_block_size=4, max_entries=10, snapshot_max_entries=10, enabled=case.kept)
        self.cache = PromptCache(self.kv, config)
        admission = Admission(self.kv, self.cache, config.kv_watermark)
        self.lives: dict[Generation, Life] = {}
        self.alive: list[Life] = []
        self.released = self.ended = self.keys = 0
        self.prefills_in_a_row = self.decodes_while_parked = self.vacant = 0
        self.parked: Sequence | None = None
        self.began: dict[int, tuple[int, int]] = {}  # step and tokens with which a prompt began
        self.steps = 0
        self.worker = Worker(
            lambda: Prepared(self.backend, self.scheduler, self.cache, admission),
            post=self.post,
            released=self.release,
            died=lambda error: None,
        )
        self.worker.begin()

    def post(self, batch: list[tuple[Generation, Event]]) -> None:
        for generation, event in batch:
            life = self.lives[generation]
            assert life.end is None, "an event after the last one"
            life.events.append(event)

    def release(self) -> None:
        self.released += 1

    def arrive(self, wanted: int | None = None) -> Life:
        rng = self.rng
        self.keys += 1
        prompt = bytes([48 + rng.randrange(3)]) * rng.choice([1, 5, 20, 60]) + bytes(
            rng.choices(b"xyz", k=rng.randrange(6))
        )
        if rng.random() < self.case.troubles:
            prompt = bytes([POISON]) + prompt
        request = GenerationRequest(
            tuple(prompt),
            GREEDY,
            priority=rng.choice(list(Priority)),
            cache_prompt=rng.random() < 0.9,
            tenant=rng.choice(["", "a"]),
            history=len(prompt) - rng.randrange(3),
        )
        generation = Generation(request)
        wanted = rng.choice([0, 1, 3, 10, 30, 60]) if wanted is None else wanted
        shift = ContextShift(CONTEXT, 4)
        sequence = Sequence(self.keys, request, generation, ByteTokenizer(), wanted, shift)
        self.lives[generation] = life = Life(sequence, wanted)
        self.alive.append(life)
        self.worker.submit(sequence)
        return life

    def step(self, arrivals: float = 0.25) -> None:
        """Something may happen outside, then the worker does one thing."""
        rng = self.rng
        while len(self.alive) < MOST_ALIVE and (not self.alive or rng.random() < arrivals):
            self.arrive()
        if rng.random() < 0.02:
            rng.choice(self.alive).sequence.generation.cancel()
        if rng.random() < 0.002:
            self.worker.clear_cache(lambda stats: None)
        rows_before, parked_before = self.scheduler.rows, self.parked
        waiting_before = {life.sequence for life in self.alive} - set(self.scheduler._running())
        self.backend.did.clear()
        self.worker.turn()
        self.steps += 1
        self.bury()
        running = [sequence for sequence in self.scheduler.sequences() if sequence.key in self.kv.sequences]
        self.parked = next((s for s in self.scheduler._running() if s not in self.scheduler.rows), None)
        self.nobody_is_lost(running)
        self.nobody_starves(rows_before, parked_before)
        self.nobody_waits_beside_a_free_slot(waiting_before)
        self.every_byte_is_accounted_for()

    def bury(self) -> None:
        """Take note of those that ended."""
        for life in list(self.alive):
            cancelled = life.sequence.generation.cancelled
            if cancelled or life.end is not None:
                assert life.sequence not in self.scheduler.sequences(), "it ended and is still there"
                self.alive.remove(life)
                self.ended += 1
            if life.end is None:
                continue
            prompt, said = bytes(life.sequence.request.prompt), len(life.text)
            if life.end.reason is FinishReason.LENGTH:
                assert life.text == expected(prompt, life.wanted, CONTEXT, 4)
            else:
                assert life.end.reason is FinishReason.ERROR
                assert self.case.troubles or self.case.budget, life.end
                assert life.text == expected(prompt, said, CONTEXT, 4)

    def nobody_is_lost(self, with_memory: list[Sequence]) -> None:
        assert {life.sequence for life in self.alive} == set(self.scheduler.sequences())
        assert self.released == self.ended, "a place is given back once"
        running = self.scheduler._running()
        assert len(running) == self.scheduler.active == self.worker.counters.active <= self.case.slots
        assert set(with_memory) <= set(running), "who waits holds nothing"
        assert [row.key for row in self.scheduler.rows] == self.backend.keys
        assert set(self.kv.sequences) == {sequence.key for sequence in with_memory}

    def nobody_starves(self, rows_before: tuple[Sequence, ...], parked_before: Sequence | None) -> None:
        """The bound that the scheduler states, counted in steps."""
        did, grant = self.backend.did, self.case.grant
        waited = [row for row in rows_before if row in self.scheduler.rows]
        if did["decode"] or not waited:
            self.prefills_in_a_row = 0
        self.prefills_in_a_row += did["prefill"] if waited else 0
        assert self.prefills_in_a_row <= 1, "rows wait for two prompts"
        if did["prefill"] or self.parked is not parked_before or did["failure"]:
            self.decodes_while_parked = 0
        elif self.parked is not None:
            self.decodes_while_parked += did["decode"]
            assert not grant or self.decodes_while_parked <= grant, "a prompt waits for too many tokens"
        for sequence in self.scheduler._running():
            if sequence is self.parked and (sequence is not parked_before or did["failure"]):
                self.began[sequence.key] = (self.steps, len(sequence.tokens) - sequence.prefilled)
            elif sequence in self.scheduler.rows and (began := self.began.pop(sequence.key, None)) and grant:
                chunks = -(-began[1] // self.case.chunk) + 1 if self.case.chunk else 2  # one more for the boundary
                assert self.steps - began[0] <= chunks * (grant + 1), "a prompt takes too long"

    def nobody_waits_beside_a_free_slot(self, before: set[Sequence]) -> None:
        if self.case.budget is not None or self.case.troubles:
            return  # it may wait for memory
        entered = before - self.waiting()
        vacant = self.waiting() and self.parked is None and self.scheduler.active < self.case.slots
        self.vacant = self.vacant + 1 if vacant and not entered else 0
        assert self.vacant <= 2, "a slot stays empty while somebody waits"

    def waiting(self) -> set[Sequence]:
        return set(self.scheduler.sequences()) - set(self.scheduler._running())

    def every_byte_is_accounted_for(self) -> None:
        entries = list(self.cache._store._entries)
        blocks = {block for entry in entries for block in entry.state.blocks}
        stats = self.cache.stats()
        assert stats.bytes + stats.snapshot_bytes == len(blocks) * self.kv.block_bytes
        rows = [*self.kv.sequences.values(), *(entry.state.content for entry in entries)]
        held = Counter(block for row in rows for block in row.blocks)
        assert self.kv.owners == held
        assert self.kv.memory.used == len(held) * self.kv.block_bytes
        assert self.case.budget is None or len(held) <= self.case.budget

    def drain(self) -> None:
        """Nobody comes any more: all end, in as many steps as there are tokens and chunks at the most."""
        for _ in range(MOST_ALIVE * (CONTEXT + 60) * 2):
            if not self.alive:
                return
            self.step(arrivals=0.0)
        raise AssertionError("they do not end")


@pytest.mark.parametrize("name", CASES)
def test_everything_at_once(name: str) -> None:
    world = World(CASES[name], seed=sum(name.encode()))
    while world.steps < STEPS:
        world.step()
    world.drain()
    ends = Counter(life.end.reason if life.end else "cancelled" for life in world.lives.values())
    assert world.released == len(world.lives) == sum(ends.values())
    assert world.worker.counters.completed == ends[FinishReason.LENGTH] > 100
    assert (ends[FinishReason.ERROR] > 0) == (CASES[name].troubles > 0), ends
    assert not world.kv.sequences
    world.cache.clear()
    assert world.kv.memory.used == 0


def test_text_of_short_steps_is_gathered_up_to_the_next_prompt_and_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "POST_INTERVAL", 1e9)
    world = World(Case(), seed=1)
    world.worker._posted = time.monotonic()

    def begin() -> Life:
        """A new request, whose prompt has been read when this returns."""
        life = world.arrive(30)
        while life.sequence not in world.scheduler.rows:
            world.worker.turn()
        return life

    first = begin()
    for _ in range(5):
        world.worker.turn()
    assert not first.events
    begin()
    assert first.text, "what was there before the prompt of another went out before it was read"
    before = len(first.events)
    for _ in range(5):
        world.worker.turn()
    assert len(first.events) == before
    while not first.end:
        world.worker.turn()
    assert first.text == expected(bytes(first.sequence.request.prompt), 30, CONTEXT, 4)
