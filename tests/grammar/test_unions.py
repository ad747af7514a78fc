"""Members of a oneOf that exclude each other."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.grammar.compiler import Compiler
from mlxcel.grammar.errors import NotCompiled
from mlxcel.grammar.unions import exclusive

from .tokenizers import byte_tokenizer, info_of, spell


def tagged(*tags: str, required: bool = True, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"enum": list(tags)}, **properties},
        "required": ["kind"] if required else [],
    }


CAT, DOG = tagged("cat", lives={"type": "integer"}), tagged("dog")
DEFS = {"$defs": {"cat": CAT, "dog": {"$ref": "#/$defs/hound"}, "hound": DOG, "loop": {"$ref": "#/$defs/loop"}}}


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([CAT, DOG], True),
        ([ref("cat"), ref("dog")], True),
        ([ref("cat"), {"type": "object", "properties": {"kind": {"const": "dog"}}, "required": ["kind"]}], True),
        ([CAT], True),
        ([CAT, CAT], False),
        ([tagged("cat", "dog"), DOG], False),
        ([CAT, tagged("dog", required=False)], False),
        ([CAT, {"properties": DOG["properties"], "required": ["kind"]}], False),
        ([CAT, {"type": "object", "properties": {"kind": {"const": 1}}, "required": ["kind"]}], False),
        ([ref("loop"), CAT], False),
        ([{"$ref": "#/nowhere/at/all"}, CAT], False),
        ([{"$ref": "https://example.com"}, CAT], False),
        ([True, CAT], False),
        ([], False),
        ({}, False),
    ],
)
def test_tags_tell_members_apart(members: Any, expected: bool) -> None:
    assert exclusive(members, DEFS) is expected


def test_a_union_by_reference_is_served_and_a_false_hint_is_not_believed() -> None:
    tokenizer = byte_tokenizer()
    compiler = Compiler(info_of(tokenizer))
    pets = {"type": "array", "items": {"oneOf": [ref("cat"), ref("dog")], "discriminator": {"propertyName": "kind"}}}
    rule = compiler.schema({**pets, **DEFS})
    assert spell(rule.begin(), tokenizer, '[{"kind":"dog"},{"kind":"cat","lives":7}]') is True
    assert spell(rule.begin(), tokenizer, '[{"kind":"cow"') is None
    with pytest.raises(NotCompiled, match="oneOf"):
        compiler.schema({"oneOf": [{"type": "number"}, {"type": "integer"}], "discriminator": {"propertyName": "kind"}})
