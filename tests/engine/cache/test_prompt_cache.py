"""The prompt cache over counted blocks: what is found, what is kept, what goes."""

from __future__ import annotations

import logging

import pytest

from mlxcel.engine.cache.storage import Reuse
from tests.engine.cache.harness import BLOCK, setup, text
from tests.engine.scripted import ScriptedStorage


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
        assert not s.admission.admit(s.sequence(text(6 * BLOCK)), (running,))
        assert s.storage.sequences.keys() == {running.key}
        assert s.admission.admit(s.sequence(text(5 * BLOCK)), (running,))

    def test_without_others_nobody_waits(self) -> None:
        s = setup(budget=2)
        assert s.admission.admit(s.sequence(text(9 * BLOCK)), ())

    def test_cached_prompts_make_room_the_oldest_first(self) -> None:
        s = setup(budget=10, kv_watermark=0.0)
        for start in (0, 1, 2):
            s.run(text(3 * BLOCK, start))
        running, _ = s.begin(text(2 * BLOCK, 3))
        assert s.cache.stats().entries == 2
        assert s.admission.admit(s.sequence(text(4 * BLOCK, 4)), (running,))
        s.end(running, well=False)
        assert s.run(text(3 * BLOCK, 2)) == 3 * BLOCK - 1

    def test_what_is_cached_costs_nothing(self) -> None:
        s = setup(budget=10, kv_watermark=0.0)
        s.run(text(8 * BLOCK))
        running, _ = s.begin(text(BLOCK, 3))
        sequence = s.sequence([*text(8 * BLOCK), 1])
        assert s.admission.admit(sequence, (running,))
        assert sequence.prefilled == 8 * BLOCK
        assert not s.admission.admit(s.sequence(text(2 * BLOCK, 9)), (running,))
        assert s.cache.stats().lookups == 3, "who waits has looked nothing up yet"

    def test_entries_in_use_are_not_given_up_in_vain(self) -> None:
        s = setup(budget=10, kv_watermark=0.0)
        s.run(text(4 * BLOCK))
        other, _ = s.begin(text(1, 9))
        user, _ = s.begin(text(4 * BLOCK + 1))
        assert not s.admission.admit(s.sequence(text(8 * BLOCK, 9)), (user,))
        assert s.cache.stats().entries == 1
        s.end(user, well=False)
        assert s.admission.admit(s.sequence(text(8 * BLOCK, 9)), (other,))
        assert s.cache.stats().entries == 0

    def test_who_comes_while_others_run_begins_with_what_they_have(self) -> None:
        s = setup(budget=10, kv_watermark=0.0)
        first, _ = s.begin(text(6 * BLOCK + 2))
        second = s.sequence([*text(5 * BLOCK + 1), 250, 250])
        assert s.admission.admit(second, (first,))
        assert second.prefilled == 5 * BLOCK + 1
        assert s.storage.open(second.key).fed == text(5 * BLOCK + 1)
        assert s.cache.stats().hits == 1
        s.end(first, well=False)
        s.end(second, well=False)
        assert s.storage.memory.used == 0, "nothing was kept of it"

    @pytest.mark.parametrize("change", [{"tenant": "other"}, {"cache_prompt": False}])
    def test_not_across_keys_nor_against_a_request_s_will(self, change: dict[str, object]) -> None:
        s = setup()
        plain, _ = s.begin(text(6 * BLOCK))
        for running, change_of_new in ((plain, change), (s.begin(text(6 * BLOCK), **change)[0], {})):
            new = s.sequence(text(6 * BLOCK), **change_of_new)
            assert s.admission.admit(new, (running,))
            assert new.prefilled == 0

    def test_states_that_cannot_be_cut_are_not_taken_from_running_sequences(self) -> None:
        s = setup(Reuse.WHOLE)
        first, _ = s.begin(text(6 * BLOCK))
        second = s.sequence(text(6 * BLOCK))
        assert s.admission.admit(second, (first,))
        assert second.prefilled == 0

    def test_the_cache_s_own_entry_is_taken_when_it_has_more(self) -> None:
        s = setup()
        s.run(text(8 * BLOCK))
        first, _ = s.begin(text(3 * BLOCK))
        second = s.sequence(text(8 * BLOCK))
        assert s.admission.admit(second, (first,))
        assert second.prefilled == 8 * BLOCK - 1


def test_boundaries_can_be_left_out() -> None:
    s = setup(Reuse.WHOLE, boundaries=False)
    sequence, _ = s.begin(text(30), history=20)
    assert sequence.boundary is None


def test_the_trace_tells_what_happens_and_no_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    setup().run(text(30))
    assert not caplog.records
    s = setup(trace=True)
    s.run(text(30))
    s.run(text(40))
    s.run(text(3))
    assert [record.getMessage() for record in caplog.records] == [
        "prompt cache: prompt of 30 tokens begins with 0 known ones",
        "prompt cache: state of 30 tokens is kept",
        "prompt cache: prompt of 40 tokens begins with 30 known ones",
        "prompt cache: state of 40 tokens is kept",
        "prompt cache: prompt of 3 tokens begins with 0 known ones",
        "prompt cache: state of 3 tokens is not kept: unwanted, short, or not where it should be",
    ]
