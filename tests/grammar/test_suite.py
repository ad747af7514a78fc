"""The JSON Schema Test Suite: a schema is refused, or nothing invalid under it can be said."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mlxcel.grammar.compiler import Compiler
from mlxcel.grammar.errors import GrammarError

from .tokenizers import allowed, byte_tokenizer, info_of, spell, wander

CASES: dict[str, list[dict[str, Any]]] = defaultdict(list)
for line in (Path(__file__).parent / "json_schema_test_suite" / "cases.jsonl").read_text().splitlines():
    case = json.loads(line, parse_float=Decimal)
    CASES[case["file"]].append(case)

VALIDATORS = {"draft2020-12": jsonschema.Draft202012Validator, "draft7": jsonschema.Draft7Validator}
TOKENIZER = byte_tokenizer()
COMPILER = Compiler(info_of(TOKENIZER))


def floats(value: Any) -> Any:
    """Numbers as a request has them: the validator gets them exactly, for it cannot divide floats."""
    if isinstance(value, dict):
        return {name: floats(member) for name, member in value.items()}
    if isinstance(value, list):
        return [floats(member) for member in value]
    return float(value) if isinstance(value, Decimal) else value


def says(schema: dict[str, Any], value: Any) -> bool:
    constraint = COMPILER.schema(schema).begin()
    complete = spell(constraint, TOKENIZER, json.dumps(floats(value), ensure_ascii=False))
    return complete is True or (complete is False and 256 in allowed(constraint))


@pytest.mark.parametrize("file", CASES)
def test_nothing_invalid_can_be_said(file: str) -> None:
    draft = VALIDATORS[file.split("/")[0]]
    for case in CASES[file]:
        schema = case["schema"]
        if not isinstance(schema, dict):  # a request cannot have it
            continue
        if "$schema" not in schema:
            schema = {"$schema": draft.META_SCHEMA["$schema"], **schema}
        try:
            rule = COMPILER.schema(floats(schema))
        except GrammarError:
            continue
        for value in case["invalid"]:
            assert not says(floats(schema), value), (schema, value)
        validator = draft(schema, format_checker=draft.FORMAT_CHECKER)
        for seed in range(4):
            text = wander(rule.begin(), TOKENIZER, seed, 120)
            if text is not None:
                validator.validate(json.loads(text, parse_float=Decimal))


def test_most_of_it_is_served() -> None:
    """Keywords that are served, by their files: none of their schemas is refused."""
    for keyword in ("anyOf", "const", "enum", "items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength"):
        cases = [
            case for case in CASES[f"draft2020-12/{keyword}.json"] if isinstance(case["schema"], dict) and case["valid"]
        ]
        assert cases
        refused = []
        for case in cases:
            try:
                COMPILER.schema(floats(case["schema"]))
            except GrammarError as error:
                refused.append((case["schema"], str(error)))
        assert not refused
