"""Schemas that the grammar engine takes on and cannot bear, told before it begins.

It measures no work while it finds out whether a text can match several patterns, which doubles with each of them; and
it finds only while it generates that too many things may come next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from mlxcel.grammar.errors import NotCompiled

NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value holds schemas under names that the user chose."""

DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is no schema."""

MAX_PATTERNS = 12
"""In a schema that may ask for several of them at once."""

MAX_CHOICES = 1900
"""Things that may come next, as the engine counts them: it stops at 2000."""

_PER_OPTIONAL = 4
"""What a property that may be left out counts for."""


def check_complexity(schema: dict[str, Any]) -> None:
    """Raises NotCompiled. `schema` is within the limits on size and depth."""
    nodes = list(_nodes(schema))
    if sum(map(_choices, nodes)) > MAX_CHOICES:
        raise NotCompiled("response_format schema has too many optional properties or members of an enum")
    if sum("pattern" in node for node in nodes) > MAX_PATTERNS and any(map(_combines, nodes)):
        raise NotCompiled(f"response_format schema combines others and has more than {MAX_PATTERNS} patterns")


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all schemas inside it."""
    if isinstance(schema, list):
        for member in cast(list[Any], schema):
            yield from _nodes(member)
    if not isinstance(schema, dict):
        return
    node = cast(dict[str, Any], schema)
    yield node
    for keyword, value in node.items():
        if keyword in NAMED and isinstance(value, dict):
            yield from _nodes(list(cast(dict[str, Any], value).values()))
        elif keyword not in DATA:
            yield from _nodes(value)


def _choices(node: dict[str, Any]) -> int:
    properties, required, members = node.get("properties"), node.get("required"), node.get("enum")
    optional = set[Any](cast(dict[str, Any], properties)) if isinstance(properties, dict) else set[Any]()
    if isinstance(required, list):
        optional -= {name for name in cast(list[Any], required) if isinstance(name, str)}
    values = cast(list[Any], members) if isinstance(members, list) else []
    containers = sum(isinstance(value, dict | list) for value in values)
    return _PER_OPTIONAL * len(optional) + containers


def _combines(node: dict[str, Any]) -> bool:
    """Whether a value has to satisfy several schemas: of `allOf`, or those beside an `anyOf`, `oneOf` or `$ref`."""
    both = node.get("allOf")
    if isinstance(both, list) and len(cast(list[Any], both)) > 1:
        return True
    beside = {"pattern", "properties", "patternProperties", "additionalProperties", "items", "prefixItems"}
    beside |= {"allOf", "anyOf", "oneOf", "$ref"}
    return sum(keyword in node for keyword in ("allOf", "anyOf", "oneOf", "$ref")) > 0 and len(beside & node.keys()) > 1
