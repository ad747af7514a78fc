"""The prompt cache over counted blocks: what it promises, whatever happens in whatever order."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from mlxcel.config import CacheConfig
from mlxcel.engine.admission import Admission
from mlxcel.engine.cache.entry import Entry
from mlxcel.engine.cache.prompt_cache import PromptCache
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import GenerationRequest
from mlxcel.engine.sequence import Sequence
from tests.engine.scripted import ByteTokenizer, Row, ScriptedStorage

BLOCK = ScriptedStorage.BLOCK
LIMITLESS = 1 << 40


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Setup:
    """A cache with everything around it."""

    storage: ScriptedStorage
    cache: PromptCache
    admission: Admission
    clock: Clock
    keys: int = 0
    config: CacheConfig = field(default_factory=CacheConfig)

    def sequence(self, tokens: list[int], **request: object) -> Sequence:
        self.keys += 1
        made = GenerationRequest(tuple(tokens), **request)  # type: ignore[arg-type]
        return Sequence(self.keys, made, Generation(made), ByteTokenizer(), 100)

    def begin(self, tokens: list[int], **request: object) -> tuple[Sequence, int]:
        """A sequence with its prompt read, and how much of it was cached."""
        sequence = self.sequence(tokens, **request)
        assert self.admission.admit(sequence, False)
        cached = sequence.prefilled
        stops = [sequence.boundary, len(tokens)]
        for stop in stops:
            if stop is not None and stop > self.storage.length(sequence.key):
                have = self.storage.length(sequence.key)
                self.storage.append(self.storage.open(sequence.key), tokens[have:stop])
                if stop == sequence.boundary:
                    self.cache.keep_boundary(sequence)
        return sequence, cached

    def end(self, sequence: Sequence, *, well: bool = True) -> None:
        if well:
            self.cache.donate(sequence)
        self.storage.discard(sequence.key)

    def run(self, tokens: list[int], **request: object) -> int:
        """A whole life, with nothing generated; how much of the prompt was cached."""
        sequence, cached = self.begin(tokens, **request)
        self.end(sequence)
        return cached


def setup(reuse: Reuse = Reuse.BEGINNING, budget: int | None = None, **config: object) -> Setup:
    values = {"min_prefix": 4, "apc_block_size": 4, "capacity_bytes": LIMITLESS, "snapshot_capacity_bytes": LIMITLESS}
    made = CacheConfig(**{**values, **config})  # type: ignore[arg-type]
    storage, clock = ScriptedStorage(reuse, budget), Clock()
    cache = PromptCache(storage, made, clock=clock)
    return Setup(storage, cache, Admission(storage, cache, made.kv_watermark), clock, config=made)


def text(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i) % 251 for i in range(length)]


def test_a_prompt_begins_with_what_an_earlier_one_left() -> None:
    s = setup()
    assert s.run(text(50)) == 0
    assert s.run(text(50)) == 49, "the last token is run again, for its logits"
    assert s.run([*text(30), 255, *text(40, 3)]) == 30, "to the token, not to the block"
    assert s.run(text(80)) == 50
    stats = s.cache.stats()
    assert (stats.lookups, stats.hits, stats.hit_rate) == (4, 3, 0.75)
    assert stats.entries == 2, "the longest takes the place of what it goes on from"
    assert stats.total_blocks_stored > stats.unique_block_hashes > 0
    assert stats.apc_active_entries == 2


def test_generated_tokens_are_kept_too() -> None:
    s = setup()
    sequence, _ = s.begin(text(20))
    for token in (1, 2, 3):
        sequence.tokens.append(token)
        s.storage.append(s.storage.open(sequence.key), [token])
    sequence.tokens.append(4)  # drawn and not run
    s.end(sequence)
    assert s.run([*text(20), 1, 2, 3, 4, 5]) == 23


def test_what_is_there_already_is_not_kept_twice() -> None:
    s = setup()
    s.run(text(50))
    used = s.storage.memory.used
    s.run(text(50))
    s.run(text(21))
    assert s.cache.stats().inserts == 1
    assert s.storage.memory.used == used


def test_short_prompts_are_not_worth_it() -> None:
    s = setup(min_prefix=20)
    s.run(text(19))
    assert s.cache.stats().inserts == 0
    s.run(text(40))
    assert s.run([*text(19), 255]) == 0
    assert s.run([*text(20), 255]) == 20


def test_requests_can_stay_out() -> None:
    s = setup()
    assert s.run(text(40)) == 0
    assert s.run(text(40), cache_prompt=False) == 0
    s.run(text(40, 99), cache_prompt=False)
    assert s.run(text(40, 99)) == 0
    assert s.cache.stats().lookups == 2


@pytest.mark.parametrize("switch", ["cache_prompt", "enabled", "refused", "capacity_bytes"])
def test_a_cache_that_is_off_keeps_nothing(switch: str) -> None:
    s = setup(**{switch: 0 if switch == "capacity_bytes" else switch == "refused"})
    s.run(text(40))
    assert s.run(text(40)) == 0
    stats = s.cache.stats()
    assert not stats.enabled
    assert not stats.apc_enabled
    assert (stats.entries, stats.bytes, stats.lookups, stats.inserts, stats.capacity_bytes) == (0, 0, 0, 0, 0)
    assert s.storage.memory.used == 0


@pytest.mark.parametrize("apc", [True, False])
def test_nothing_is_shared_between_api_keys(apc: bool) -> None:
    s = setup(apc_enabled=apc)
    s.run(text(39), tenant="a")
    assert s.run(text(40), tenant="b") == 0
    assert s.run(text(40)) == 0
    assert s.run(text(40), tenant="a") == 39


def test_only_healthy_ends_leave_something() -> None:
    s = setup()
    sequence, _ = s.begin(text(40))
    s.end(sequence, well=False)
    assert s.run(text(40)) == 0


def test_a_sequence_out_of_step_with_its_storage_leaves_nothing() -> None:
    s = setup()
    sequence, _ = s.begin(text(40))
    sequence.tokens += [1, 2]
    s.end(sequence)
    assert s.cache.stats().inserts == 0


def test_the_least_recently_used_goes_first() -> None:
    s = setup(max_entries=2)
    for start in (0, 1, 0, 2):
        s.run(text(20, start))
    assert s.run(text(20, 0)) == 19
    assert s.run(text(20, 1)) == 0
    assert s.cache.stats().evictions_lru == 2


def test_bytes_are_counted_once_for_what_is_shared() -> None:
    s = setup(capacity_bytes=7 * ScriptedStorage.block_bytes)
    s.run(text(5 * BLOCK))
    s.run([*text(4 * BLOCK), *text(BLOCK, 5)])
    assert s.cache.stats().bytes == 6 * ScriptedStorage.block_bytes
    s.run([*text(4 * BLOCK), *text(BLOCK, 9)])
    assert s.cache.stats().entries == 3
    s.run([*text(4 * BLOCK), *text(BLOCK, 13)])
    assert s.cache.stats().entries == 3
    assert s.cache.stats().bytes <= 7 * ScriptedStorage.block_bytes


def test_a_prompt_larger_than_the_cache_is_refused_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    s = setup(capacity_bytes=3 * ScriptedStorage.block_bytes)
    s.run(text(10))
    for _ in range(2):
        s.run(text(4 * BLOCK, 5))
    stats = s.cache.stats()
    assert (stats.rejections_oversized, stats.entries) == (2, 1)
    assert [record.message.count("--prompt-cache-capacity-bytes") for record in caplog.records] == [1]
    assert s.run(text(10)) == 9


def test_what_nobody_uses_goes_after_a_time() -> None:
    s = setup(ttl=100)
    s.run(text(20, 0))
    s.clock.now = 60
    s.run(text(20, 1))
    assert s.cache.expires_in == 40
    s.clock.now = 90
    assert s.run(text(20, 0)) == 19
    s.clock.now = 170
    s.cache.expire()
    assert s.cache.stats().evictions_ttl == 1
    assert s.run(text(20, 0)) == 19
    s.clock.now = 1000
    assert s.run(text(20, 0)) == 0
    s.cache.clear()
    assert s.cache.expires_in is None


def test_the_number_of_known_blocks_can_be_limited() -> None:
    s = setup(apc_num_blocks=10)
    for start in range(4):
        s.run(text(20, start))
    assert s.cache.stats().unique_block_hashes == 10
    assert s.cache.stats().entries == 2


def test_without_blocks_an_entry_is_found_by_a_prompt_that_goes_on_from_all_of_it() -> None:
    s = setup(apc_enabled=False)
    s.run(text(30))
    assert s.run([*text(29), 255, 255]) == 0
    assert s.run(text(40)) == 30
    assert s.run(text(35)) == 30, "the shorter one is still there"
    stats = s.cache.stats()
    assert (stats.apc_enabled, stats.apc_active_entries, stats.unique_block_hashes) == (False, 0, 0)


class TestWholeStates:
    """Models whose state cannot be cut."""

    def test_a_state_fits_a_prompt_that_goes_on_from_it(self) -> None:
        s = setup(Reuse.WHOLE)
        s.run(text(30))
        assert s.run([*text(29), 255, 255]) == 0
        assert s.run(text(30)) == 0, "nothing is left to run"
        assert s.run(text(40)) == 30

    def test_it_is_kept_where_the_history_ends(self) -> None:
        s = setup(Reuse.WHOLE)
        s.run([*text(30), 1, 2, 3], history=30)
        assert s.run([*text(30), 9, 9, 9, 1, 2, 3], history=33) == 30
        stats = s.cache.stats()
        assert stats.snapshot_hits == 1
        assert stats.snapshot_supersedes == 1, "a longer history takes the place of the shorter one"
        assert stats.snapshot_entries == 3
        assert stats.snapshot_bytes == stats.snapshot_bytes_per_entry * 3 + stats.snapshot_bytes % 3
        assert (stats.entries, stats.bytes) == (0, 0)

    @pytest.mark.parametrize("history", [2, 34, 500])
    def test_a_boundary_that_is_no_use_is_left_out(self, history: int) -> None:
        s = setup(Reuse.WHOLE)
        sequence, _ = s.begin([*text(30), 1, 2, 3, 4], history=history)
        assert sequence.boundary is None

    def test_it_is_found_within_its_conversation_only(self) -> None:
        s = setup(Reuse.WHOLE)
        s.run(text(30), conversation="key a")
        assert s.run(text(40), conversation="key b") == 0
        assert s.run(text(40)) == 0
        assert s.run(text(40), conversation="key a", tenant="t") == 0
        assert s.run(text(40), conversation="key a") == 30

    def test_plain_attention_needs_no_conversation(self) -> None:
        s = setup()
        s.run(text(30), conversation="key a")
        assert s.run(text(40), conversation="key b", history=35) == 30


class TestAdmission:
    """Memory for sequences."""

    def test_a_waiting_sequence_leaves_room_for_the_others(self) -> None:
        s = setup(budget=10, kv_watermark=0.2)
        running, _ = s.begin(text(3 * BLOCK, 5))
        assert not s.admission.admit(s.sequence(text(6 * BLOCK)), True)
        assert s.storage.sequences.keys() == {running.key}
        assert s.admission.admit(s.sequence(text(5 * BLOCK)), True)

    def test_without_others_nobody_waits(self) -> None:
        s = setup(budget=2)
        assert s.admission.admit(s.sequence(text(9 * BLOCK)), False)

    def test_cached_prompts_make_room_the_oldest_first(self) -> None:
        s = setup(budget=10, kv_watermark=0.0)
        for start in (0, 1, 2):
            s.run(text(3 * BLOCK, start))
        running, _ = s.begin(text(2 * BLOCK, 3))
        assert s.cache.stats().entries == 2
        assert s.admission.admit(s.sequence(text(4 * BLOCK, 4)), True)
        s.end(running, well=False)
        assert s.run(text(3 * BLOCK, 2)) == 3 * BLOCK - 1

    def test_what_is_cached_costs_nothing(self) -> None:
        s = setup(budget=10, kv_watermark=0.0)
        s.run(text(8 * BLOCK))
        s.begin(text(BLOCK, 3))
        sequence = s.sequence([*text(8 * BLOCK), 1])
        assert s.admission.admit(sequence, True)
        assert sequence.prefilled == 8 * BLOCK
        assert not s.admission.admit(s.sequence(text(2 * BLOCK, 9)), True)
        assert s.cache.stats().lookups == 3, "who waits has looked nothing up yet"

    def test_entries_in_use_are_not_given_up_in_vain(self) -> None:
        s = setup(budget=10, kv_watermark=0.0)
        s.run(text(4 * BLOCK))
        user, _ = s.begin(text(4 * BLOCK + 1))
        assert not s.admission.admit(s.sequence(text(8 * BLOCK, 9)), True)
        assert s.cache.stats().entries == 1
        s.end(user, well=False)
        assert s.admission.admit(s.sequence(text(8 * BLOCK, 9)), True)
        assert s.cache.stats().entries == 0


PROMPTS = st.tuples(
    st.integers(1, 40),  # tokens that all prompts begin with
    st.integers(0, 3),  # and others
    st.sampled_from([("", ""), ("", ""), ("", ""), ("", "key x"), ("a", "")]),
    st.sampled_from([True, True, True, False]),
    st.integers(0, 3),
)


class CacheMachine(RuleBasedStateMachine):
    """Prompts that have much in common, of two API keys and two conversations, come and go at random."""

    running = Bundle("running")

    @initialize(
        reuse=st.sampled_from([Reuse.BEGINNING, Reuse.WHOLE]),
        budget=st.sampled_from([None, 40]),
        capacity=st.sampled_from([LIMITLESS, 12_000]),
        entries=st.integers(1, 8),
        blocks=st.sampled_from([0, 12]),
        apc=st.booleans(),
    )
    def start(self, reuse: Reuse, budget: int | None, capacity: int, entries: int, blocks: int, apc: bool) -> None:
        self.s = setup(
            reuse,
            budget,
            capacity_bytes=capacity,
            snapshot_capacity_bytes=capacity,
            max_entries=entries,
            snapshot_max_entries=entries,
            ttl=50,
            snapshot_ttl=50,
            apc_num_blocks=blocks,
            apc_enabled=apc,
        )
        self.live: dict[int, Sequence] = {}
        self.writer: dict[int, str] = {}  # of each block: the scope it was written in
        self.unbounded = budget is None

    @property
    def entries(self) -> list[Entry]:
        return list(self.s.cache._store._entries)

    def scope(self, sequence: Sequence) -> str:
        request = sequence.request
        whole = self.s.storage.reuse is Reuse.WHOLE
        return f"{request.tenant}\0{request.conversation}" if whole else request.tenant

    @rule(target=running, prompt=PROMPTS)
    def come(self, prompt: tuple[int, int, tuple[str, str], bool, int]) -> Sequence:
        length, tail, (tenant, conversation), wanted, scaffold = prompt
        tokens = text(length) + [200 + tail] * tail
        sequence = self.s.sequence(
            tokens,
            tenant=tenant,
            conversation=conversation,
            cache_prompt=wanted,
            history=max(0, len(tokens) - scaffold),
        )
        best = self.best(sequence)
        decoding = bool(self.live)
        if not self.s.admission.admit(sequence, decoding):
            assert not self.unbounded
            assert sequence.key not in self.s.storage.sequences
            return sequence
        assert sequence.prefilled == best
        row = self.s.storage.open(sequence.key)
        assert row.fed == tokens[:best]
        assert all(self.writer[block] == self.scope(sequence) for block in row.blocks), "read across a scope"
        self.live[sequence.key] = sequence
        boundary = sequence.boundary
        self.feed(sequence, tokens[best : boundary if boundary is not None and boundary > best else len(tokens) - 1])
        if sequence.key in self.live and self.s.storage.length(sequence.key) == boundary:
            self.s.cache.keep_boundary(sequence)
        return sequence

    def best(self, sequence: Sequence) -> int:
        """How much of a prompt can be taken over from what is there."""
        known, config, best = sequence.tokens[:-1], self.s.config, 0
        if not sequence.request.cache_prompt:
            return 0
        blocks = self.s.storage.reuse is Reuse.BEGINNING and config.apc_enabled
        for entry in self.entries:
            tokens = entry.tokens.tolist()
            if entry.scope != self.scope(sequence) or entry.used_at + 50 <= self.s.clock.now:
                continue
            common = next((i for i, (a, b) in enumerate(zip(tokens, known, strict=False)) if a != b), None)
            common = min(len(tokens), len(known)) if common is None else common
            if common == len(tokens) or (blocks and common >= config.apc_block_size):
                best = max(best, common)
        return best if best >= config.min_prefix else 0

    def feed(self, sequence: Sequence, tokens: list[int]) -> None:
        """Run tokens, others giving way as the worker would have them."""
        row = self.s.storage.open(sequence.key)
        while True:
            try:
                self.s.storage.append(row, tokens)
                break
            except MemoryError:
                if self.s.cache.reclaim():
                    continue
                del self.live[sequence.key]
                self.s.storage.discard(sequence.key)
                return
        for block in row.blocks:
            self.writer.setdefault(block, self.scope(sequence))

    @rule(sequence=running, tokens=st.lists(st.integers(0, 2), min_size=1, max_size=9))
    def generate(self, sequence: Sequence, tokens: list[int]) -> None:
        if sequence.key in self.live:
            have = self.s.storage.length(sequence.key)
            sequence.tokens += tokens
            self.feed(sequence, sequence.tokens[have:-1])

    @rule(sequence=consumes(running), well=st.booleans())
    def leave(self, sequence: Sequence, well: bool) -> None:
        if self.live.pop(sequence.key, None):
            self.s.end(sequence, well=well)

    @rule(prompts=st.lists(PROMPTS, min_size=1, max_size=3))
    def come_and_go(self, prompts: list[tuple[int, int, tuple[str, str], bool, int]]) -> None:
        for prompt in prompts:
            self.leave(self.come(prompt), True)

    @rule(seconds=st.integers(1, 30), what=st.sampled_from(["time", "time", "time", "reclaim", "reset"]))
    def in_between(self, seconds: int, what: str) -> None:
        if what == "time":
            self.s.clock.now += seconds
        elif what == "reclaim":
            before = self.s.storage.memory.used
            assert self.s.cache.reclaim() == (self.s.storage.memory.used < before)
        else:
            self.s.cache.clear()
            assert not self.entries

    @invariant()
    def bytes_are_those_of_the_entries(self) -> None:
        blocks = {block for entry in self.entries for block in entry.state.blocks}
        store = self.s.cache._store
        assert store.bytes == len(blocks) * ScriptedStorage.block_bytes
        assert store.bytes <= store.limits.capacity
        assert len(self.entries) <= store.limits.entries

    @invariant()
    def every_block_has_as_many_owners_as_it_is_held_by(self) -> None:
        rows = [*self.s.storage.sequences.values(), *(entry.state.content for entry in self.entries)]
        held = [block for row in rows for block in row.blocks]
        assert self.s.storage.owners == {block: held.count(block) for block in set(held)}
        assert self.s.storage.sequences.keys() == self.live.keys()

    @invariant()
    def a_state_is_that_of_its_tokens(self) -> None:
        for entry in self.entries:
            content: Row = entry.state.content
            assert content.fed == entry.tokens.tolist()
            assert len(content.fed) == entry.state.length
            assert all(self.writer[block] == entry.scope for block in entry.state.blocks)

    @invariant()
    def the_index_knows_the_entries(self) -> None:
        stats = self.s.cache.stats()
        if self.s.storage.reuse is Reuse.BEGINNING:
            digests = [digest for entry in self.entries for digest in entry.digests]
            assert stats.total_blocks_stored == len(digests)
            assert stats.unique_block_hashes == len(set(digests))
            assert not self.s.config.apc_num_blocks or stats.unique_block_hashes <= self.s.config.apc_num_blocks
        assert stats.entries + stats.snapshot_entries == len(self.entries)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
