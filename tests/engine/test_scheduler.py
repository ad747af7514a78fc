"""The scheduler driven step by step, without a model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, Priority
from mlxcel.engine.scheduler import Decode, Prefill, Scheduler
from mlxcel.engine.sequence import Sequence

from .scripted import ByteTokenizer


def sequence(length: int, priority: Priority = Priority.NORMAL) -> Sequence:
    request = GenerationRequest(prompt=(65,) * length, priority=priority)
    return Sequence(0, request, Generation(request), ByteTokenizer(), 10)


def run_step(scheduler: Scheduler) -> Prefill | Decode | None:
    step = scheduler.next_step()
    if isinstance(step, Prefill):
        scheduler.prefilled(step)
    elif isinstance(step, Decode):
        scheduler.decoded()
    return step


def test_a_long_prompt_comes_in_chunks_and_covers_all_but_its_last_token() -> None:
    scheduler = Scheduler(slots=2, chunk=4, grant_interval=2)
    scheduler.add(sequence(11))
    steps = [run_step(scheduler) for _ in range(3)]
    assert [(s.start, s.end, s.last) for s in steps if isinstance(s, Prefill)] == [
        (0, 4, False),
        (4, 8, False),
        (8, 10, True),
    ]
    assert isinstance(scheduler.next_step(), Decode)


def test_chunk_zero_takes_the_prompt_at_once() -> None:
    scheduler = Scheduler(slots=1, chunk=0, grant_interval=2)
    scheduler.add(sequence(1000))
    step = run_step(scheduler)
    assert isinstance(step, Prefill)
    assert (step.start, step.end, step.last) == (0, 999, True)


def test_a_one_token_prompt_joins_without_prefill() -> None:
    scheduler = Scheduler(slots=1, chunk=4, grant_interval=2)
    scheduler.add(sequence(1))
    step = run_step(scheduler)
    assert isinstance(step, Prefill)
    assert (step.start, step.end, step.last) == (0, 0, True)


def test_running_rows_get_their_steps_between_two_chunks() -> None:
    scheduler = Scheduler(slots=2, chunk=2, grant_interval=3)
    scheduler.add(sequence(1))
    run_step(scheduler)
    scheduler.add(sequence(7))
    kinds = [type(run_step(scheduler)).__name__ for _ in range(10)]
    assert kinds == ["Prefill", *["Decode"] * 3, "Prefill", *["Decode"] * 3, "Prefill", "Decode"]


def test_grant_interval_zero_waits_for_the_batch_to_drain() -> None:
    scheduler = Scheduler(slots=2, chunk=2, grant_interval=0)
    row = sequence(1)
    scheduler.add(row)
    run_step(scheduler)
    scheduler.add(sequence(7))
    assert isinstance(run_step(scheduler), Prefill)
    assert all(isinstance(run_step(scheduler), Decode) for _ in range(50))
    scheduler.remove(row)
    assert isinstance(run_step(scheduler), Prefill)


def test_priority_orders_the_queue_and_arrival_orders_a_class() -> None:
    scheduler = Scheduler(slots=4, chunk=0, grant_interval=1)
    low, first, second, high = (sequence(5, p) for p in (Priority.LOW, Priority.NORMAL, Priority.NORMAL, Priority.HIGH))
    for item in (low, first, second, high):
        scheduler.add(item)
    for _ in range(4):
        run_step(scheduler)
    assert scheduler.rows == (high, first, second, low)


def test_nothing_is_admitted_without_a_free_slot() -> None:
    scheduler = Scheduler(slots=1, chunk=0, grant_interval=1)
    scheduler.add(sequence(5))
    scheduler.add(sequence(5))
    run_step(scheduler)
    assert all(isinstance(run_step(scheduler), Decode) for _ in range(20))
    assert (scheduler.active, scheduler.queued) == (1, 1)


def test_restart_begins_the_parked_prompt_again() -> None:
    scheduler = Scheduler(slots=1, chunk=2, grant_interval=1)
    scheduler.add(sequence(9))
    run_step(scheduler)
    scheduler.restart_parked()
    step = scheduler.next_step()
    assert isinstance(step, Prefill)
    assert step.start == 0


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, steps and departures."""

    alive = Bundle("alive")
    SLOTS, GRANT, CHUNK = 3, 4, 5

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(slots=self.SLOTS, chunk=self.CHUNK, grant_interval=self.GRANT)
        self.model: set[Sequence] = set()
        self.decodes_while_parked = 0

    @rule(target=alive, length=st.integers(1, 30), priority=st.sampled_from(Priority))
    def arrive(self, length: int, priority: Priority) -> Sequence:
        item = sequence(length, priority)
        self.scheduler.add(item)
        self.model.add(item)
        return item

    @rule(item=consumes(alive))
    def leave(self, item: Sequence) -> None:
        self.scheduler.remove(item)
        self.model.discard(item)
        self.decodes_while_parked = 0

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            before = self.scheduler.active
            step = self.scheduler.next_step()
            assert (step is None) == (not self.model)
            if isinstance(step, Prefill):
                assert step.start == step.sequence.prefilled
                assert step.end - step.start <= self.CHUNK
                self.decodes_while_parked = 0
                self.scheduler.prefilled(step)
            elif isinstance(step, Decode):
                assert step.rows
                parked = before > len(step.rows)
                self.decodes_while_parked += parked
                assert self.decodes_while_parked <= self.GRANT, "a parked prompt starves"
                self.scheduler.decoded()

    @invariant()
    def nobody_is_lost(self) -> None:
        assert set(self.scheduler.sequences()) == self.model
        assert self.scheduler.active + self.scheduler.queued == len(self.model)
        assert self.scheduler.active <= self.SLOTS
        assert self.scheduler.idle == (not self.model)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
