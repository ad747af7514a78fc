"""The scheduler driven step by step, without a model."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mlxcel.engine.cache.retention import Retention
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest, Priority
from mlxcel.engine.scheduler import Decode, Preempt, Prefill, Scheduler, Step
from mlxcel.engine.sequence import Sequence

from .scripted import ByteTokenizer


def sequence(length: int, priority: Priority = Priority.NORMAL) -> Sequence:
    request = GenerationRequest(prompt=(65,) * length, priority=priority)
    return Sequence(0, request, Generation(request), ByteTokenizer(), 10)


def run_step(scheduler: Scheduler) -> Step | None:
    step = scheduler.next_step()
    if isinstance(step, Prefill):
        scheduler.prefilled(step)
    elif isinstance(step, Decode):
        scheduler.decoded()
    return step


def settled(*sequences: Sequence, slots: int = 2, preemption: bool = False) -> Scheduler:
    """A scheduler whose rows these are, each of which has had a token since the last prompt was read."""
    scheduler = Scheduler(slots=slots, chunk=2, grant_interval=1, preemption=preemption)
    for item in sequences:
        scheduler.add(item)
        while item not in scheduler.rows:
            run_step(scheduler)
    assert isinstance(run_step(scheduler), Decode)
    return scheduler


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


def test_pieces_end_where_something_is_forgotten() -> None:
    for chunk, ends in ((0, [256, 320, 384, 399]), (100, [100, 200, 256, 320, 384, 399])):
        scheduler = Scheduler(slots=1, chunk=chunk, grant_interval=2, retention=Retention(256))
        scheduler.add(sequence(400))
        steps = [run_step(scheduler) for _ in ends]
        assert [step.end for step in steps if isinstance(step, Prefill)] == ends


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
    kinds = [type(run_step(scheduler)).__name__ for _ in range(11)]
    assert kinds == ["Decode", "Prefill", *["Decode"] * 3, "Prefill", *["Decode"] * 3, "Prefill", "Decode"]


def test_grant_interval_zero_waits_for_the_batch_to_drain() -> None:
    scheduler = Scheduler(slots=2, chunk=2, grant_interval=0)
    row = sequence(1)
    scheduler.add(row)
    run_step(scheduler)
    scheduler.add(sequence(7))
    assert isinstance(run_step(scheduler), Decode)
    assert isinstance(run_step(scheduler), Prefill)
    assert all(isinstance(run_step(scheduler), Decode) for _ in range(50))
    scheduler.remove(row)
    assert isinstance(run_step(scheduler), Prefill)


def test_priority_orders_the_queue_and_arrival_orders_a_class() -> None:
    scheduler = Scheduler(slots=4, chunk=0, grant_interval=1)
    low, first, second, high = (sequence(5, p) for p in (Priority.LOW, Priority.NORMAL, Priority.NORMAL, Priority.HIGH))
    for item in (low, first, second, high):
        scheduler.add(item)
    for _ in range(7):
        run_step(scheduler)
    assert scheduler.rows == (high, first, second, low)


def test_there_is_a_token_for_everyone_between_any_two_prompts() -> None:
    scheduler = Scheduler(slots=4, chunk=0, grant_interval=16)
    for _ in range(3):
        scheduler.add(sequence(5))
    kinds = [type(run_step(scheduler)).__name__ for _ in range(6)]
    assert kinds == ["Prefill", "Decode"] * 3


def test_beside_rows_a_prompt_that_takes_long_is_read_in_smaller_pieces() -> None:
    scheduler = Scheduler(slots=2, chunk=512, grant_interval=1)
    row = sequence(1000)
    scheduler.add(row)
    sizes = []
    for length in (1000, 3000):
        if length == 3000:
            scheduler.add(sequence(length))
        for _ in range(5):
            step = scheduler.next_step()
            if isinstance(step, Prefill):
                sizes.append(step.end - step.start)
                scheduler.prefilled(step, seconds=(step.end - step.start) * 0.002)
            else:
                scheduler.decoded(seconds=0.01)
    assert sizes[:2] == [512, 487], "nobody is waiting"
    assert sizes[2:] == [128] * 3, "a quarter of a second at 500 tokens a second, in multiples of 32"


def test_a_prompt_that_fails_has_taken_its_time_too() -> None:
    scheduler = settled(sequence(1))
    bad, next_one = sequence(5), sequence(5)
    for item in (bad, next_one):
        scheduler.add(item)
    assert isinstance(scheduler.next_step(), Prefill)
    scheduler.remove(bad)
    assert isinstance(run_step(scheduler), Decode)
    assert isinstance(scheduler.next_step(), Prefill)


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


def test_who_gets_no_memory_waits_until_somebody_leaves_and_is_not_overtaken() -> None:
    row, waiting, later = (sequence(5) for _ in range(3))
    scheduler = settled(row, slots=3)
    asked: list[Sequence] = []

    def admit(item: Sequence) -> bool:
        asked.append(item)
        return not scheduler.rows

    scheduler.add(waiting)
    scheduler.add(later)
    assert all(isinstance(scheduler.next_step(admit), Decode) for _ in range(5))
    assert asked == [waiting], "nothing has changed since"
    high = sequence(5, Priority.HIGH)
    scheduler.add(high)
    assert isinstance(scheduler.next_step(admit), Decode)
    assert asked == [waiting, high]
    scheduler.remove(high)
    scheduler.remove(row)
    step = scheduler.next_step(admit)
    assert isinstance(step, Prefill)
    assert step.sequence is waiting


def test_a_sequence_that_gave_its_place_back_comes_before_those_that_came_later() -> None:
    first, second, third = (sequence(5) for _ in range(3))
    scheduler = settled(first, second)
    scheduler.add(third)
    assert scheduler.last_in() is second
    scheduler.requeue(second, for_memory=True)
    assert scheduler.rows == (first,)
    assert all(isinstance(scheduler.next_step(), Decode) for _ in range(3)), "the memory is for who is left"
    scheduler.remove(first)
    step = scheduler.next_step()
    assert isinstance(step, Prefill)
    assert step.sequence is second


def test_the_prompt_being_read_may_be_the_last_in() -> None:
    scheduler = settled(sequence(1))
    parked = sequence(9)
    scheduler.add(parked)
    run_step(scheduler)
    assert scheduler.last_in() is parked
    scheduler.requeue(parked, for_memory=True)
    assert (scheduler.active, scheduler.queued) == (1, 1)


def test_a_higher_priority_takes_the_place_of_a_lower_one_on_request() -> None:
    for preemption in (True, False):
        normal, low = sequence(5), sequence(5, Priority.LOW)
        scheduler = settled(low, normal, preemption=preemption)
        same, high = sequence(5), sequence(5, Priority.HIGH)
        scheduler.add(high)
        step = scheduler.next_step()
        assert isinstance(step, Preempt if preemption else Decode)
        if isinstance(step, Preempt):
            assert step.sequence is low
            scheduler.requeue(low)
            step = run_step(scheduler)
            assert isinstance(step, Prefill)
            assert step.sequence is high
            scheduler.add(same)
            assert isinstance(scheduler.next_step(), Decode), "equals wait"


def test_memory_is_taken_from_a_lower_priority_too() -> None:
    low = sequence(5, Priority.LOW)
    scheduler = settled(low, preemption=True)
    scheduler.add(sequence(5, Priority.HIGH))
    step = scheduler.next_step(lambda item: False)
    assert isinstance(step, Preempt)
    assert step.sequence is low


def test_reading_stops_at_the_boundary() -> None:
    scheduler = Scheduler(slots=1, chunk=4, grant_interval=1)
    item = sequence(12)
    item.boundary = 6
    scheduler.add(item)
    steps = [run_step(scheduler) for _ in range(4)]
    assert [(s.start, s.end) for s in steps if isinstance(s, Prefill)] == [(0, 4), (4, 6), (6, 10), (10, 11)]


class SchedulerMachine(RuleBasedStateMachine):
    """Random arrivals, steps, refusals and departures."""

    alive = Bundle("alive")
    SLOTS, GRANT, CHUNK = 3, 4, 5

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(slots=self.SLOTS, chunk=self.CHUNK, grant_interval=self.GRANT, preemption=True)
        self.model: set[Sequence] = set()
        self.decodes_while_parked = 0
        self.read_last = False
        self.room = True

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

    @rule(room=st.booleans())
    def memory(self, room: bool) -> None:
        self.room = room

    @rule()
    def lack_memory(self) -> None:
        if self.scheduler.active > 1:
            last = self.scheduler.last_in()
            running = [item for item in self.model if item.started]
            assert all(item.request.priority <= last.request.priority for item in running)
            self.give_back(last, for_memory=True)

    def give_back(self, item: Sequence, *, for_memory: bool) -> None:
        item.prefilled, item.started = 0, False
        self.scheduler.requeue(item, for_memory=for_memory)
        self.decodes_while_parked = 0

    def admit(self, item: Sequence) -> bool:
        assert item is min((i for i in self.model if not i.started), key=lambda i: (i.request.priority, i.arrival))
        if self.room or not self.scheduler.rows:
            item.start(0)
            return True
        return False

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            before = self.scheduler.active
            step = self.scheduler.next_step(self.admit)
            assert (step is None) == (not self.model)
            if isinstance(step, Prefill):
                assert step.start == step.sequence.prefilled
                assert step.end - step.start <= self.CHUNK
                assert not (self.read_last and self.scheduler.rows), "rows wait for two prompts"
                self.read_last = True
                self.decodes_while_parked = 0
                self.scheduler.prefilled(step)
            elif isinstance(step, Decode):
                assert step.rows
                self.read_last = False
                parked = before > len(step.rows)
                self.decodes_while_parked += parked
                assert self.decodes_while_parked <= self.GRANT, "a parked prompt starves"
                self.scheduler.decoded()
            elif isinstance(step, Preempt):
                waiting = [item.request.priority for item in self.model if not item.started]
                assert step.sequence in self.scheduler.rows
                assert min(waiting) < step.sequence.request.priority
                self.give_back(step.sequence, for_memory=False)

    @invariant()
    def nobody_is_lost(self) -> None:
        assert set(self.scheduler.sequences()) == self.model
        assert self.scheduler.active + self.scheduler.queued == len(self.model)
        assert self.scheduler.active == sum(item.started for item in self.model)
        assert self.scheduler.active <= self.SLOTS
        assert self.scheduler.idle == (not self.model)


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
