"""The prompt cache over counted blocks: what it promises, whatever happens in whatever order."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from mlxcel.engine.cache.entry import Entry, common_length
from mlxcel.engine.cache.storage import Reuse
from mlxcel.engine.sequence import Sequence
from tests.engine.cache.harness import LIMITLESS, setup, text
from tests.engine.scripted import Row, ScriptedStorage

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
        if not self.s.admission.admit(sequence, tuple(self.live.values())):
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
            common = common_length(np.asarray(tokens), np.asarray(known))
            if common == len(tokens) or (blocks and common >= config.apc_block_size):
                best = max(best, common)
        for other in self.live.values():
            request, length = other.request, self.s.storage.length(other.key)
            if (
                self.s.storage.reuse is Reuse.BEGINNING
                and request.cache_prompt
                and request.tenant == sequence.request.tenant
            ):
                best = max(best, common_length(np.asarray(other.tokens[:length]), np.asarray(known)))
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
