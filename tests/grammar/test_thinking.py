"""Rules that wait for the end of a model's reasoning."""

from __future__ import annotations

import pytest

from mlxcel.engine.constraint import Constraint, ConstraintError
from mlxcel.grammar.compiler import CompiledRule, Compiler
from tests.engine.scripted import EOS

from .tokenizers import allowed, byte_tokenizer, follow, info_of

TOKENIZER = byte_tokenizer("</think>")
THINK, CLOSE = 258 + 7, 258 + 8
"""One is text, the other special, as tokenizers have both."""


@pytest.fixture(scope="module")
def rule() -> CompiledRule:
    return Compiler(info_of(TOKENIZER)).schema({"type": "boolean"})


def say(constraint: Constraint, text: bytes) -> None:
    assert follow(constraint, text) is False


def test_reasoning_is_free_but_may_not_end_the_answer(rule: CompiledRule) -> None:
    constraint = rule.after_reasoning("</think>").begin()
    assert allowed(constraint, 300)[:257] == [*range(256), 257]
    say(constraint, b"well, {false}? ")
    assert EOS not in allowed(constraint)
    assert constraint.consume(CLOSE) is False
    assert allowed(constraint) == [ord("f"), ord("t"), 258]
    assert constraint.consume(258) is True


def test_a_close_that_is_spelled_in_pieces_counts(rule: CompiledRule) -> None:
    constraint = rule.after_reasoning("</think>").begin()
    say(constraint, b"a </thin </th")
    say(constraint, b"ink>")
    assert follow(constraint, b"true") is True


def test_what_comes_with_the_close_belongs_to_the_answer() -> None:
    compiler = Compiler(info_of(byte_tokenizer()))
    rule = compiler.schema({"type": "object"})
    spaced = rule.after_reasoning(" the ").begin()  # " the" and then a byte
    say(spaced, b"...")
    assert spaced.consume(258 + 5) is False
    assert spaced.consume(ord(" ")) is False
    assert ord("{") in allowed(spaced)
    joined = rule.after_reasoning("{").begin()  # the token {" closes, and begins with what may not come
    assert 258 + 2 not in allowed(joined)
    with pytest.raises(ConstraintError):
        joined.consume(258 + 2)
    begun = compiler.schema({"type": "string"}).after_reasoning("{").begin()
    assert begun.consume(258 + 2) is False
    assert follow(begun, b'x"') is True


def test_a_token_may_not_end_the_reasoning_and_say_more_at_once() -> None:
    words = ("><", "> ", "nk>{", "a</think>b", "a</think>")
    over, space, inner, whole, closing = range(258, 258 + len(words))
    rule = Compiler(info_of(byte_tokenizer(words=words))).schema({"type": "boolean"}).after_reasoning("</think>")
    for said, banned in (
        (b"", {whole}),
        (b"x", {whole}),
        (b"</thin", {whole}),
        (b"a </thi", {inner, whole}),
        (b"</</think", {over, whole}),
        (b"</thinks", {whole}),
    ):
        constraint = rule.begin()
        say(constraint, said)
        assert set(range(258, 258 + len(words))) - set(allowed(constraint)) == banned
    constraint = rule.begin()
    say(constraint, b"</think")
    assert constraint.consume(space) is False
    assert follow(constraint, b"true") is True
    constraint = rule.begin()
    assert constraint.consume(closing) is False
    assert follow(constraint, b"true") is True


def test_a_model_that_may_think_or_not(rule: CompiledRule) -> None:
    either = rule.after_reasoning("</think>", "<think>")
    silent = either.begin()
    assert allowed(silent) == [ord("f"), ord("t"), 258, THINK]
    assert follow(silent, b"false") is True
    thinking = either.begin()
    assert thinking.consume(THINK) is False
    say(thinking, b"hm")
    assert thinking.consume(CLOSE) is False
    assert allowed(thinking) == [ord("f"), ord("t"), 258]
    again = either.begin()
    assert THINK in allowed(again), "one sequence does not use up the opening of another"


def test_an_opening_of_several_tokens_is_said_to_its_end(rule: CompiledRule) -> None:
    constraint = rule.after_reasoning("]", "[t]").begin()
    assert set(allowed(constraint)) == {ord("f"), ord("t"), 258, ord("[")}
    assert constraint.consume(ord("[")) is False
    assert allowed(constraint) == [ord("t")]
    say(constraint, b"t]free]")
    assert follow(constraint, b"true") is True
