"""Sequences under a rule: what the engine asks of it, and what it does with the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mlxcel.config import EngineConfig
from mlxcel.engine.constraint import Constraint, ConstraintError, Words
from mlxcel.engine.events import FinishReason, StopKind, TextPiece
from mlxcel.engine.loops import LoopRule
from mlxcel.engine.request import GenerationRequest, Priority, SamplingParams

from .scripted import EOS, VOCABULARY, ScriptedBackend, ScriptedStorage
from .test_engine import collect, running, until

GREEDY = SamplingParams(temperature=0.0)


class Spelling:
    """The rule "this text, and then the end", and everything it was told."""

    def __init__(self, text: bytes, *, fails_at: int | None = None, masked: bool = True) -> None:
        self.text = text
        self.fails_at = fails_at
        self.masked = masked
        self.begun: list[Spelled] = []

    def begin(self) -> Constraint:
        self.begun.append(Spelled(self))
        return self.begun[-1]


class Spelled:
    def __init__(self, rule: Spelling) -> None:
        self.rule = rule
        self.consumed: list[int] = []

    @property
    def mask(self) -> Words | None:
        if not self.rule.masked:
            return None
        words = np.zeros(-(-VOCABULARY // 32), np.uint32)
        token = self.rule.text[len(self.consumed)]
        words[token // 32] = 1 << token % 32
        return words

    def consume(self, token: int) -> bool:
        if len(self.consumed) == self.rule.fails_at:
            raise ConstraintError("broken")
        self.consumed.append(token)
        return len(self.consumed) == len(self.rule.text)


def request(prompt: bytes, rule: Any = None, **values: Any) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), **{"sampling": GREEDY, "rule": rule, **values})


def wishes(fed: Sequence[int]) -> int:
    """What the model would say: the prompt "hello" again, and to any other one n for ever."""
    prompt = b"hello"
    if bytes(fed[: len(prompt)]) != prompt:
        return ord("n")
    said = len(fed) - len(prompt)
    return prompt[said] if said < len(prompt) else EOS


def answers(
    requests: Sequence[GenerationRequest],
    backend: ScriptedBackend | None = None,
    config: EngineConfig | None = None,
) -> list[tuple[str, Any]]:
    async def work() -> list[tuple[str, Any]]:
        async with running(backend or ScriptedBackend(follow=wishes), config) as engine:
            generations = [engine.submit([each])[0] for each in requests]
            return [await collect(generation) for generation in generations]

    return asyncio.run(work())


def test_the_mask_decides_and_a_complete_text_ends() -> None:
    rule = Spelling(b"yes")
    ((text, finished),) = answers([request(b"no", rule)])
    assert text == "yes"
    assert (finished.reason, finished.kind, finished.usage.completion_tokens) == (FinishReason.STOP, StopKind.EOS, 3)
    assert bytes(rule.begun[0].consumed) == b"yes"


def test_an_end_token_that_may_come_ends_too_and_is_not_consumed() -> None:
    rule = Spelling(b"longer than it", masked=False)
    ((text, finished),) = answers([request(b"hello", rule)])
    assert (text, finished.kind, bytes(rule.begun[0].consumed)) == ("hello", StopKind.EOS, b"hello")


@pytest.mark.parametrize(
    ("values", "text", "reason", "kind"),
    [
        ({"stop": ("c",)}, "ab", FinishReason.STOP, StopKind.WORD),
        ({"max_tokens": 2}, "ab", FinishReason.LENGTH, StopKind.LIMIT),
        ({"max_tokens": 4}, "abcd", FinishReason.STOP, StopKind.EOS),
        ({"stop": ("d",)}, "abc", FinishReason.STOP, StopKind.WORD),
        ({"loops": LoopRule(1, 1, 2)}, "abcd", FinishReason.STOP, StopKind.EOS),
    ],
)
def test_other_ends(values: dict[str, Any], text: str, reason: FinishReason, kind: StopKind) -> None:
    ((said, finished),) = answers([request(b"x", Spelling(b"abcd"), **values)])
    assert (said, finished.reason, finished.kind) == (text, reason, kind)


def test_a_loop_ends_a_constrained_text_as_any_other() -> None:
    ((said, finished),) = answers([request(b"x", Spelling(b"aaaaaaaa"), loops=LoopRule(1, 1, 3))])
    assert (said, finished.reason, finished.kind) == ("aaa", FinishReason.STOP, StopKind.NONE)


def test_a_rule_that_fails_ends_its_sequence_with_nothing_of_the_token() -> None:
    free, held = answers([request(b"hello"), request(b"x", Spelling(b"abc", fails_at=1))])
    assert free[0] == "hello"
    assert held[0] == "a"
    assert held[1].reason is FinishReason.ERROR


def test_a_mask_that_is_not_to_be_had_ends_its_sequence() -> None:
    class Broken(Spelled):
        @property
        def mask(self) -> Words | None:
            raise ConstraintError("no token may follow")

    class Rule(Spelling):
        def begin(self) -> Constraint:
            return Broken(self)

    free, held = answers([request(b"hello"), request(b"x", Rule(b"a"))])
    assert (free[0], held[0], held[1].reason) == ("hello", "", FinishReason.ERROR)


def test_an_empty_mask_ends_its_sequence() -> None:
    class Empty(Spelled):
        @property
        def mask(self) -> Words | None:
            return np.zeros(-(-VOCABULARY // 32), np.uint32)

    class Rule(Spelling):
        def begin(self) -> Constraint:
            return Empty(self)

    free, held = answers([request(b"hello"), request(b"x", Rule(b"a"))])
    assert (free[0], held[0], held[1].reason) == ("hello", "", FinishReason.ERROR)


def test_a_bias_against_all_that_may_come_ends_the_sequence() -> None:
    banned = SamplingParams(temperature=0.0, logit_bias=((ord("b"), float("-inf")),))
    ((said, finished),) = answers([request(b"x", Spelling(b"abc"), sampling=banned)])
    assert (said, finished.reason) == ("a", FinishReason.ERROR)


def test_neighbours_say_what_they_say_alone() -> None:
    drawn = SamplingParams(temperature=3.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)

    def flat(fed: Sequence[int]) -> int:
        return (sum(fed) * 7) % 90 + 33

    alone = answers([request(b"free", sampling=drawn, max_tokens=40)], ScriptedBackend(follow=flat))
    company = [request(b"free", sampling=drawn, max_tokens=40), *(request(b"x", Spelling(b"y" * 20)) for _ in range(3))]
    together = answers(company, ScriptedBackend(follow=flat))
    assert together[0][0] == alone[0][0]
    assert [text for text, _ in together[1:]] == ["y" * 20] * 3


def test_choices_of_one_request_have_a_state_each() -> None:
    rule = Spelling(b"abc")

    async def work() -> list[tuple[str, Any]]:
        async with running(ScriptedBackend(follow=wishes)) as engine:
            generations = engine.submit([request(b"x", rule), request(b"x", rule)])
            return [await collect(generation) for generation in generations]

    assert [text for text, _ in asyncio.run(work())] == ["abc", "abc"]
    assert [bytes(begun.consumed) for begun in rule.begun] == [b"abc", b"abc"]


def test_log_probabilities_are_those_of_the_model() -> None:
    async def work() -> list[TextPiece]:
        async with running(ScriptedBackend(follow=wishes)) as engine:
            (generation,) = engine.submit([request(b"x", Spelling(b"yes"), logprobs=1)])
            return [event async for event in generation if isinstance(event, TextPiece)]

    for piece in asyncio.run(work()):
        (entry,) = piece.logprobs
        assert entry.top[0].text == "n", "what the model would have said"
        assert entry.chosen.logprob == pytest.approx(-40.0, abs=0.1)


def test_what_is_read_again_is_not_consumed_again() -> None:
    low = Spelling(b"abcdefgh")

    async def preempted() -> str:
        backend = ScriptedBackend(follow=wishes)
        config = EngineConfig(parallel=1, preemption=True)
        async with running(backend, config) as engine:
            backend.gate.clear()
            (first,) = engine.submit([request(b"low", low, priority=Priority.LOW)])
            await until(lambda: bool(backend.keys))
            backend.gate.set()
            (second,) = engine.submit([request(b"hello", priority=Priority.HIGH)])
            text, _ = await collect(first)
            await collect(second)
            return text

    assert asyncio.run(preempted()) == "abcdefgh"
    assert [bytes(begun.consumed) for begun in low.begun] == [b"abcdefgh"]

    shifted = Spelling(bytes(97 + index % 26 for index in range(1200)))
    config = EngineConfig(parallel=1, ctx_size=512, context_shift=True)
    ((text, finished),) = answers(
        [request(b"prompt", shifted, max_tokens=1300)],
        ScriptedBackend(follow=wishes, context=512),
        config,
    )
    assert (text, finished.reason) == (shifted.text.decode(), FinishReason.STOP)
    assert [bytes(begun.consumed) for begun in shifted.begun] == [shifted.text]


def test_a_sequence_that_has_to_wait_for_memory_goes_on_where_it_was() -> None:
    rules = [Spelling(bytes([97 + index]) * 40) for index in range(3)]
    backend = ScriptedBackend(follow=wishes, kv=ScriptedStorage(budget=12))
    said = answers([request(b"x", rule) for rule in rules], backend)
    assert [text for text, _ in said] == [rule.text.decode() for rule in rules]
    assert all([bytes(begun.consumed) for begun in rule.begun] == [rule.text] for rule in rules)
