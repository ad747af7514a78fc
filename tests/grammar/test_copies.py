"""How much the engine writes out: counted, and not more work to count than it would be to write."""

from __future__ import annotations

from typing import Any

import pytest

from mlxcel.grammar.complexity import _nodes  # pyright: ignore[reportPrivateUsage]
from mlxcel.grammar.copies import written_out


def count(schema: dict[str, Any]) -> int:
    return written_out(schema, list(_nodes(schema)))


PAIR: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "null"}, "y": {"type": "null"}}}
REF = {"$ref": "#/$defs/pair"}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (PAIR, 3),
        ({"items": PAIR, "prefixItems": [PAIR, PAIR]}, 10),
        ({"enum": [PAIR], "default": PAIR}, 1),
        # Alone, a reference is no copy; the definition counts once.
        ({**REF, "$defs": {"pair": PAIR}}, 1 + 3),
        ({"properties": {"a": REF, "b": {**REF, "description": "d"}}, "$defs": {"pair": PAIR}}, 3 + 3),
        ({"allOf": [REF], "title": "t", "$defs": {"pair": PAIR}}, 2 + 3),
        ({"properties": {"a": {**REF, "type": "object"}}, "$defs": {"pair": PAIR}}, 2 + 3 + 3),
        ({"allOf": [REF, {"required": ["x"]}], "$defs": {"pair": PAIR}}, 1 + (1 + 3) + 1 + 3),
        # What stands beside a union is written out for each member.
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, 2 * (1 + 1)),
        ({**PAIR, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]}, 2 * (3 + 1)),
        ({"allOf": [PAIR, {"anyOf": [{"required": ["x"]}, {"required": ["y"]}]}]}, 2 * (1 + 3 + 1 + 1)),
    ],
)
def test_copies_are_counted(schema: dict[str, Any], expected: int) -> None:
    assert count(schema) == expected


@pytest.mark.parametrize(
    "definitions",
    [{"pair": {**PAIR, "$anchor": "name"}}, {"pair": PAIR, "other": {"$id": "other", "$defs": {"pair": PAIR}}}],
)
def test_references_by_other_names_are_not_followed(definitions: dict[str, Any]) -> None:
    reference = "#name" if "$anchor" in definitions["pair"] else "#/$defs/pair"
    assert count({"items": {"$ref": reference, "title": "t"}, "$defs": definitions}) < 20
    assert count({"items": {"$ref": reference, "required": ["x"]}, "$defs": definitions}) > 10**6


def test_what_refers_to_itself_has_an_end() -> None:
    schema = {
        "properties": {"x": {"$ref": "#", "type": "object"}, "y": {"$ref": "#/$defs/y", "type": "object"}},
        "$defs": {
            "y": {"items": {"$ref": "#/$defs/y", "maxItems": 3}, "properties": {"z": {"$ref": "#", "title": "t"}}}
        },
    }
    assert count(schema) < 100


def test_deep_documents_that_lead_to_deep_documents_are_counted() -> None:
    def deep(then: dict[str, Any]) -> dict[str, Any]:
        for _ in range(14):
            then = {"properties": {"a": then}}
        return then

    definitions = {f"s{i}": deep({"$ref": f"#/$defs/s{i + 1}", "type": "object"}) for i in range(60)}
    assert count({"$ref": "#/$defs/s0", "type": "object", "$defs": definitions}) > 10**6
