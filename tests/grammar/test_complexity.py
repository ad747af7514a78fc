"""What the engine takes on and cannot bear is refused before it begins, and what it can bear is not."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from mlxcel.grammar.compiler import Compiler
from mlxcel.grammar.complexity import MAX_PATTERNS
from mlxcel.grammar.errors import NotCompiled

from .tokenizers import byte_tokenizer, info_of, wander

TOKENIZER = byte_tokenizer()


def _patterns(count: int) -> list[dict[str, Any]]:
    return [{"type": "string", "pattern": f"a.{{{7 * index}}}b"} for index in range(count)]


def _optional(count: int) -> dict[str, Any]:
    properties = {f"p{index}": {"type": "string"} for index in range(count)}
    return {"type": "object", "properties": properties, "additionalProperties": False}


_CHAIN: dict[str, Any] = {
    "$ref": "#/$defs/s0",
    "$defs": {
        f"s{index}": {"pattern": f"a.{{{index}}}b", **({"$ref": f"#/$defs/s{index + 1}"} if index < 30 else {})}
        for index in range(31)
    },
}


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": _patterns(30)},
        {"allOf": [{"properties": {"p": pattern}} for pattern in _patterns(30)]},
        {"anyOf": [{"pattern": "x"}], "allOf": _patterns(30)},
        _CHAIN,
    ],
)
def test_patterns_that_meet(schema: dict[str, Any]) -> None:
    with pytest.raises(NotCompiled, match=f"more than {MAX_PATTERNS} patterns"):
        Compiler(info_of(TOKENIZER)).schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        _optional(2000),
        {"enum": [[index] for index in range(4000)]},
        {"anyOf": [_optional(300), {"type": "array", "items": _optional(300)}]},
    ],
)
def test_too_many_things_that_may_come_next(schema: dict[str, Any]) -> None:
    with pytest.raises(NotCompiled, match="too many optional properties"):
        Compiler(info_of(TOKENIZER)).schema(schema)


def _levels(count: int, **beside: Any) -> dict[str, Any]:
    """Each level leads to the next one twice, with something beside the reference."""
    definitions = {
        f"s{i}": {"type": "object", "properties": {name: {"$ref": f"#/$defs/s{i + 1}", **beside} for name in "ab"}}
        for i in range(count)
    }
    return {"$ref": "#/$defs/s0", "$defs": {**definitions, f"s{count}": {"type": "object"}}}


def _nested_unions(count: int, keyword: str = "anyOf") -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(count):
        options = [{"required": ["a"]}, {"required": ["b"]}, {"required": ["a", "b"]}]
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "null"}}, keyword: options}
    return schema


def _multiples(*values: float) -> list[dict[str, Any]]:
    return [{"type": "number", "multipleOf": value} for value in values]


def _named(schemas: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": schema for index, schema in enumerate(schemas)}}


def _pattern_properties(count: int) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {f"^k{index}_": {"type": "null"} for index in range(count)}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (_levels(28, type="object"), "combines references or unions"),
        (_levels(12, nullable=True), "combines references or unions"),
        ({"allOf": [_nested_unions(13), {"type": "object"}]}, "combines references or unions"),
        (_nested_unions(14), "combines references or unions"),
        (_nested_unions(14, "oneOf"), "combines references or unions"),
        ({"allOf": [{"$ref": "#/$defs/x~1y"}, {"type": "object"}], "$defs": {"x/y": _nested_unions(13)}}, "combines"),
        (_named(_multiples(1000003)), "multipleOf"),
        (_named(_multiples(0.1000003)), "multipleOf"),
        (_named(_multiples(*range(9001, 9201, 2))), "multipleOf"),
        ({"anyOf": _multiples(1009, 1013, 1019)}, "multipleOf"),
        ({"multipleOf": 9973, "$ref": "#/$defs/x", "$defs": {"x": {"multipleOf": 9967}}}, "multipleOf"),
        (_pattern_properties(300), "patternProperties"),
    ],
)
def test_what_multiplies(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(NotCompiled, match=message):
        Compiler(info_of(TOKENIZER)).schema(schema)


_TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "left": {"$ref": "#/$defs/node", "description": "what comes before", "title": "Left"},
                "right": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}], "default": None},
                "more": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
        }
    },
}


@pytest.mark.parametrize(
    "schema",
    [
        _levels(30, description="d", default={}),
        _levels(6, type="object"),
        _nested_unions(5),
        _TREE,
        _named(_multiples(0.01, 0.25, 5, 7, 60, 1000000, 1e-7, 4096, 9973)),
        {"anyOf": _multiples(2, 3, 5, 7, 12)},
        _pattern_properties(60),
        _optional(450),
        {"enum": [[index] for index in range(1900)]},
        {"enum": list(range(9000))},
        {
            "type": "object",
            "properties": {f"p{i}": {"type": "null"} for i in range(900)},
            "required": [f"p{i}" for i in range(900)],
        },
        {"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": "^a"} for i in range(40)}},
        {"properties": {"enum": {"allOf": [{"type": "string"}]}}, "default": {"allOf": _patterns(30)}},
    ],
)
def test_what_is_large_and_can_be_borne(schema: dict[str, Any]) -> None:
    rule = Compiler(info_of(TOKENIZER)).schema(schema)
    for seed in range(3):
        wander(rule.begin(), TOKENIZER, seed, 60)  # raises nothing


def test_the_log_holds_nothing_of_a_schema(caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2"
    refused: list[dict[str, Any]] = [
        {"$ref": f"#/$defs/{secret}"},
        {"type": secret},
        {"type": "string", "pattern": f"(?={secret})x"},
        {"type": "string", "minLength": 3, "maxLength": 1, "title": secret},
        {"allOf": [{"type": "string", "pattern": f"{secret}.{{{index}}}b"} for index in range(2, 12)]},
    ]
    with caplog.at_level(logging.DEBUG):
        for schema in refused:
            with pytest.raises(NotCompiled):
                Compiler(info_of(TOKENIZER)).schema(schema)
    assert "a grammar was refused" in caplog.text
    assert secret not in caplog.text
