"""A step for all rows of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.bias import Bias
from mlxcel.engine.sampling.candidates import SamplingError
from mlxcel.engine.sampling.edits import Edits
from mlxcel.engine.sampling.rows import Rows, make_rows
from mlxcel.engine.sampling.rows_numpy import NumpyRows
from mlxcel.engine.sampling.sampler import Chosen, Sampler, sample

from .oracle import Voice, made

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_k": 0, "typical_p": 0.9},
    {"p_less": True, "temperature": 1.5},
    {"mirostat": 2, "mirostat_tau": 2.0},
    {"xtc_probability": 0.5},
    {"repetition_penalty": 1.3, "dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"adaptive_target": 0.3, "logit_bias": ((3, 5.0),)},
]


def voices(operations: Rows) -> list[Voice]:
    return [Voice(SamplingParams(seed=i, **values), (1, 2), operations) for i, values in enumerate(SETTINGS)]


@pytest.mark.parametrize("make", [NumpyRows, make_rows])
def test_a_row_says_the_same_in_any_company(make: Callable[[], Rows]) -> None:
    operations = make()
    count = len(SETTINGS)
    script = [np.stack([made(100 * t + i, 300, 3.0, 0.0) for i in range(count)]) for t in range(12)]
    alone = [[speaks(step[i]) for step in script] for i, speaks in enumerate(voices(operations))]
    together = voices(operations)
    said = [sample(together, step.copy(), operations) for step in script]
    assert said == [[Chosen(tokens[t]) for tokens in alone] for t in range(len(script))]
    # The same in company that changes, with each at a place of its own in the script.
    changing, heard = voices(operations), [list[Any]() for _ in range(count)]
    random = np.random.default_rng(1)
    while waiting := [i for i in range(count) if len(heard[i]) < len(script)]:
        present = [i for i in waiting if random.random() < 0.5] or waiting
        logits = np.stack([script[len(heard[i])][i] for i in present])
        for i, outcome in zip(present, sample([changing[i] for i in present], logits, operations), strict=True):
            heard[i].append(outcome)
    assert heard == [[Chosen(token) for token in tokens] for tokens in alone]


@pytest.mark.parametrize("make", [NumpyRows, make_rows])
def test_a_row_that_cannot_be_sampled_harms_no_other(make: Callable[[], Rows]) -> None:
    operations = make()
    logits = np.stack([made(i, 300, 3.0, 0.0) for i in range(len(SETTINGS))])
    healthy = sample(voices(operations), logits, operations)
    logits[2] = np.nan
    logits[5, 7] = np.inf
    before = logits.copy()
    outcomes = sample(voices(operations), logits, operations)
    for i, (outcome, expected) in enumerate(zip(outcomes, healthy, strict=True)):
        assert isinstance(outcome, SamplingError) if i in (2, 5) else outcome == expected
    assert np.array_equal(logits, before, equal_nan=True)


def test_a_sampler_that_fails_harms_no_other() -> None:
    class Failing(Bias):
        def apply(self, edits: Edits) -> None:
            super().apply(edits)
            raise MemoryError

    logits = np.stack([made(i, 300, 3.0, 0.0) for i in range(len(SETTINGS))])
    before, operations = logits.copy(), make_rows()
    healthy = sample(voices(operations), logits, operations)
    broken = voices(operations)
    broken[1].sampler.edits = (Failing(SamplingParams(logit_bias=((0, 1.0),)), ()),)  # type: ignore[assignment]
    outcomes = sample(broken, logits, operations)
    assert isinstance(outcomes[1], MemoryError)
    assert [outcome for i, outcome in enumerate(outcomes) if i != 1] == [*healthy[:1], *healthy[2:]]
    assert np.array_equal(logits, before)


@pytest.mark.parametrize("alternatives", [None, 2])
def test_a_sampler_that_cannot_note_its_token_harms_no_other(alternatives: int | None) -> None:
    def fail(token: int, share: float | None) -> None:
        raise MemoryError

    logits, operations = np.stack([made(i, 50, 3.0, 0.0) for i in range(3)]), make_rows()

    def three() -> list[Voice]:
        return [Voice(SamplingParams(seed=i), (), operations, alternatives=alternatives) for i in range(3)]

    healthy, broken = sample(three(), logits, operations), three()
    broken[1].sampler.end = fail  # type: ignore[method-assign]
    outcomes = sample(broken, logits, operations)
    assert isinstance(outcomes[1], MemoryError)
    assert [outcomes[0], outcomes[2]] == [healthy[0], healthy[2]]


def test_a_sampler_that_cannot_be_made_harms_no_other() -> None:
    class Unmade:
        alternatives = None
        mask = None
        forced = None

        @property
        def sampler(self) -> Sampler:
            raise MemoryError

    logits = np.stack([made(1, 50, 3.0, 0.0)] * 2)
    outcomes = sample([Unmade(), Voice(SamplingParams(temperature=0.0))], logits, make_rows())
    assert isinstance(outcomes[0], MemoryError)
    assert outcomes[1] == Chosen(int(logits[1].argmax()))


@pytest.mark.parametrize("make", [NumpyRows, make_rows])
def test_a_forced_token_costs_the_same_random_numbers_and_is_remembered(make: Callable[[], Rows]) -> None:
    operations = make()
    script = [np.stack([made(10 * t, 300, 3.0, 0.0)] * 2) for t in range(6)]
    plain, pushed = (
        [Voice(SamplingParams(seed=i, temperature=1.5), (), operations) for i in range(2)] for _ in range(2)
    )
    expected = [sample(plain, step.copy(), operations) for step in script]
    heard: list[list[Any]] = []
    for t, step in enumerate(script):
        pushed[0].forced = 299 if t == 2 else None
        heard.append(sample(pushed, step.copy(), operations))
    assert heard[2][0] == Chosen(299)
    assert [row[1] for row in heard] == [row[1] for row in expected]  # the neighbour
    assert [row[0] for t, row in enumerate(heard) if t != 2] == [row[0] for t, row in enumerate(expected) if t != 2]

    forgetful = Voice(SamplingParams(temperature=0.0, presence_penalty=100.0), (), operations, alternatives=1)
    forgetful.forced = 7
    row = np.zeros(10, np.float32)
    row[7] = 5.0
    first = forgetful.next(row)
    assert first.token == 7
    assert first.logprobs is not None
    assert first.logprobs[1][0][0] == 7
    forgetful.forced = None
    assert forgetful.next(row).token != 7
