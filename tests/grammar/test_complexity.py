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


@pytest.mark.parametrize(
    "schema",
    [
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
