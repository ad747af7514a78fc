"""Sequences under a rule."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from mlxcel.engine.constraint import ConstraintError
from mlxcel.grammar.compiler import Compiler
from tests.engine.scripted import EOS

from .tokenizers import allowed, byte_tokenizer, follow, info_of, wander

NESTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["cat", "dog", "g\u00fcrteltier"]},
        "born": {"type": "string", "format": "date"},
        "weight": {"type": "number", "minimum": 0, "exclusiveMaximum": 100},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "minItems": 1, "maxItems": 3},
        "owner": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/person"}]},
    },
    "required": ["name", "kind", "born", "weight", "tags", "owner"],
    "additionalProperties": False,
    "$defs": {
        "person": {
            "type": "object",
            "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 120}, "adult": {"type": "boolean"}},
            "required": ["age"],
            "additionalProperties": False,
        }
    },
}


def test_random_texts_are_valid() -> None:
    tokenizer = byte_tokenizer()
    rule = Compiler(info_of(tokenizer)).schema(NESTED)
    validator = jsonschema.Draft202012Validator(NESTED, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    ended = [text for seed in range(40) if (text := wander(rule.begin(), tokenizer, seed, 400))]
    assert len(ended) > 20
    for text in ended:
        validator.validate(json.loads(text))


def test_the_end_may_come_only_when_the_text_is_complete() -> None:
    constraint = Compiler(info_of(byte_tokenizer())).schema({"type": "integer", "minimum": 10, "maximum": 199}).begin()
    seen = []
    for digit in b"1", b"9":
        seen.append(EOS in allowed(constraint))
        assert not constraint.consume(digit[0])
    assert seen == [False, False]
    assert EOS in allowed(constraint), "19 may end, or become 190 to 199"
    assert constraint.consume(ord("5")), "195 may not go on: it is complete without an end token"


def test_ids_that_the_tokenizer_does_not_have_never_come() -> None:
    tokenizer = byte_tokenizer()
    for vocabulary in (tokenizer.vocab_size + 300, 200):  # a padded head; one that is too small
        constraint = Compiler(info_of(tokenizer, vocabulary)).schema({"type": "string"}).begin()
        mask = constraint.mask
        assert mask is not None
        assert mask.shape[0] * 32 >= max(vocabulary, tokenizer.vocab_size)
        constraint.consume(ord('"'))
        assert max(allowed(constraint)) < tokenizer.vocab_size


def test_special_tokens_are_no_text() -> None:
    constraint = Compiler(info_of(byte_tokenizer("<special>"))).schema({"type": "string"}).begin()
    constraint.consume(ord('"'))
    legal = allowed(constraint)
    assert 257 not in legal
    assert 258 + 8 not in legal
    assert 258 + 6 in legal


def test_what_may_not_come_ends_the_matter() -> None:
    constraint = Compiler(info_of(byte_tokenizer())).schema({"type": "boolean"}).begin()
    with pytest.raises(ConstraintError):
        constraint.consume(ord("x"))


def test_sequences_of_one_rule_know_nothing_of_each_other() -> None:
    rule = Compiler(info_of(byte_tokenizer())).schema({"enum": ["ab", "ac"]})
    one, two = rule.begin(), rule.begin()
    assert follow(one, b'"ab') is False
    assert allowed(one) == [ord('"')]
    assert follow(two, b'"a') is False
    assert allowed(two) == [ord("b"), ord("c")]
    assert allowed(one) == [ord('"')]


def test_any_way_to_cut_a_text_into_tokens_may_be_said() -> None:
    tokenizer = byte_tokenizer()
    rule = Compiler(info_of(tokenizer)).schema({"type": "object", "additionalProperties": {"type": "boolean"}})
    text = b'{"the":true,"x":true}'
    words = {tokenizer.token_bytes(token): token for token in range(258, tokenizer.vocab_size)}
    for seed in range(20):
        chance, tokens, at = random.Random(seed), [], 0
        while at < len(text):
            longer = [word for word in words if text.startswith(word, at)]
            piece = longer[0] if longer and chance.random() < 0.5 else text[at : at + 1]
            tokens.append(words.get(piece, piece[0]))
            at += len(piece)
        assert follow(rule.begin(), tokens) is True
