"""Schemas that are refused, and what is made exact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxcel.grammar.compiler import Compiler
from mlxcel.grammar.errors import GrammarError, NotCompiled, UnsupportedTokenizer

from .tokenizers import byte_tokenizer, info_of, spell, word_tokenizer

SECRET = "hunter2"
TOKENIZER = byte_tokenizer()


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return Compiler(info_of(TOKENIZER))


def accepts(compiler: Compiler, schema: dict[str, Any], text: str | bytes) -> bool:
    """Whether the text may be said and may end there."""
    constraint = compiler.schema(schema).begin()
    complete = spell(constraint, TOKENIZER, text)
    if complete is None:
        return False
    mask = constraint.mask
    assert mask is not None
    return complete or bool(mask[256 // 32] & 1)  # the end may come


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"not": {"const": SECRET}}, "not supported: not"),
        ({"if": {"const": SECRET}, "then": False}, "not supported: if, then"),
        ({"type": "array", "uniqueItems": True}, "not supported: uniqueItems"),
        ({"properties": {SECRET: {"contains": {}, "type": "array"}}}, "not supported: contains"),
        ({"dependentSchemas": {SECRET: {}}}, "not supported: dependentSchemas"),
        ({"oneOf": [{"type": "number"}, {"type": "integer", "title": SECRET}]}, "oneOf whose members overlap"),
        ({"$ref": f"https://example.com/{SECRET}"}, "remote $ref"),
        ({"$ref": f"#/$defs/{SECRET}"}, "could not be compiled"),
        ({"type": SECRET}, "could not be compiled"),
        ({"type": "string", "pattern": f"(?={SECRET})x"}, "could not be compiled"),
        ({"type": "string", "format": "iri", "title": SECRET}, "could not be compiled"),
        ({"enum": []}, "could not be compiled"),
        ({"type": "string", "minLength": 3, "maxLength": 1, "title": SECRET}, "could not be compiled"),
        ({"required": 5, "minProperties": 1, "allOf": 5, "format": "date", "pattern": SECRET}, "minProperties"),
        ({"allOf": 5, "format": "date", "pattern": SECRET}, "could not be compiled"),
        ({"properties": 5}, "could not be compiled"),
        ({"multipleOf": -(2**64)}, "could not be compiled"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "could not be compiled"),
        ({"minProperties": 2, "title": SECRET}, "minProperties"),
        ({"minProperties": 2, "properties": {"a": {}, "b": {}}, "additionalProperties": False}, "minProperties"),
        ({"properties": {f"{SECRET}\n": {}}}, "control characters"),
        ({"required": [f"{SECRET}\x7f"]}, "control characters"),
        ({"const": 1e20, "type": "integer"}, "more than 63 bits"),
        ({"enum": [SECRET, {"a": [2**64 - 1]}]}, "more than 63 bits"),
        ({"x-guidance": {"lenient": True}, "not": {"const": SECRET}}, "not supported: not"),
    ],
)
def test_what_cannot_be_kept_is_refused_without_a_word_of_the_schema(
    compiler: Compiler, schema: dict[str, Any], words: str
) -> None:
    with pytest.raises(NotCompiled) as caught:
        compiler.schema(schema)
    assert words in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "string", "format": "date"}, ["2024-02-29", "2000-02-29"], ["2023-02-29", "1900-02-29"]),
        (
            {"type": "string", "format": "date-time"},
            ["2024-02-29T23:59:59Z"],
            ["2023-02-29T10:00:00Z", "2024-01-01T22:59:60Z"],
        ),
        ({"type": "string", "format": "time"}, ["23:59:59Z"], ["23:58:60Z"]),
        ({"type": "string", "format": "date", "pattern": "^2"}, ["2024-02-29"], ["1999-01-01", "2023-02-29"]),
        ({"format": "int32", "type": "integer"}, [7], ["7"]),
        ({"type": "array", "uniqueItems": False}, [[1, 1]], [{}]),
        ({"properties": {"format": {"format": "date"}, "const": {"format": "date"}}}, [{"const": "2024-02-29"}], []),
        ({"const": {"format": "date"}}, [{"format": "date"}], [{"format": "date", "pattern": "x"}]),
        ({"properties": {"const": {"format": "date"}}}, [{"const": 1}], [{"const": "2023-02-29"}]),
        ({"enum": ["a\nb", "\x01\x7f", "\u00fc\u2028\U0001f389", '"\\']}, ['"\\', "\u00fc\u2028\U0001f389"], ["a"]),
        ({"enum": ["only"]}, ["only"], ["onl", "other"]),
        ({"minProperties": 1, "required": ["a"], "type": "object"}, [{"a": 1}], [{}, {"b": 1}]),
        ({"title": "t", "description": "d", "default": 1, "examples": [1], "type": "null"}, [None], [1]),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "boolean"}, [True], [1]),
        ({"type": ["integer", "null"], "exclusiveMinimum": 3, "multipleOf": 2}, [4, None], [2, 5, "4"]),
        ({"oneOf": [{"type": "string"}, {"type": "boolean"}]}, ["x", True], [1]),
        (
            {
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {"next": {"$ref": "#/$defs/node"}},
                        "additionalProperties": False,
                    }
                },
                "$ref": "#/$defs/node",
                "type": "object",
            },
            [{}, {"next": {"next": {}}}],
            [{"next": 1}],
        ),
    ],
)
def test_what_a_schema_means(compiler: Compiler, schema: dict[str, Any], valid: list[Any], invalid: list[Any]) -> None:
    for value in valid:
        assert accepts(compiler, schema, json.dumps(value, ensure_ascii=False)), value
    for value in invalid:
        assert not accepts(compiler, schema, json.dumps(value, ensure_ascii=False)), value


def test_white_space_is_for_layout_only(compiler: Compiler) -> None:
    schema = {"properties": {"a": {"items": {"type": "integer"}, "type": "array"}}, "type": "object"}
    for text in ('{"a":[1,2]}', '{ "a" : [ 1 , 2 ] }', json.dumps({"a": [1, 2]}, indent=8)):
        assert accepts(compiler, schema, text)
    for text in (' {"a":[]}', '{"a":[]} ', '{"a":' + " " * 50 + "[]}", '{"a":\n\n\n[]}'):
        assert not accepts(compiler, schema, text)


def test_a_string_is_utf8(compiler: Compiler) -> None:
    assert accepts(compiler, {"type": "string"}, '"\u00fc\U0001f389"')
    for broken in (b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\\ud800"'):
        assert not accepts(compiler, {"type": "string"}, broken)


def test_a_compiled_schema_is_kept(compiler: Compiler) -> None:
    rule = compiler.schema({"enum": [1, 2]})
    assert compiler.schema({"enum": [1, 2]}) is rule
    for number in range(70):
        compiler.schema({"const": number})
    assert compiler.schema({"enum": [1, 2]}) is not rule


def test_tokenizers_that_cannot_be_constrained() -> None:
    pieces = byte_tokenizer()
    pieces.sentencepiece = True
    for tokenizer in (word_tokenizer(), pieces):
        compiler = Compiler(info_of(tokenizer))
        for _ in range(2):
            with pytest.raises(UnsupportedTokenizer, match="UnsupportedTokenizer"):
                compiler.schema({"type": "object"})
    with pytest.raises(GrammarError, match="too large"):  # that is looked at first
        compiler.schema({"anyOf": [{"$ref": "#"}] * 65})


@pytest.mark.parametrize(
    ("schema", "excluded", "inside"),
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "0", "0.01"),
        ({"type": "number", "exclusiveMinimum": 99.0, "exclusiveMaximum": 99.5}, "99", "99.2"),
        ({"type": ["number", "null"], "minimum": -1.5, "exclusiveMaximum": -1}, "-1", "-1.001"),
    ],
)
def test_excluded_bounds_stay_out(compiler: Compiler, schema: dict[str, Any], excluded: str, inside: str) -> None:
    assert not accepts(compiler, schema, excluded)
    assert accepts(compiler, schema, inside)
