"""Schemas that the grammar engine takes on and cannot bear, told before it begins.

It measures no work while it finds out whether a text can match several patterns, which doubles with each of them; and
it finds only while it generates that too many things may come next. It compares all patterns of an object's properties
with each other, builds an automaton with a state for each remainder that a `multipleOf` leaves, and writes out what
references and unions lead to (`mlxcel.grammar.copies`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, cast

from mlxcel.grammar.copies import written_out
from mlxcel.grammar.errors import NotCompiled
from mlxcel.grammar.references import target

NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value holds schemas under names that the user chose."""

DATA = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose value is no schema."""

MAX_PATTERNS = 12
"""In a schema that may ask for several of them at once."""

MAX_CHOICES = 1900
"""Things that may come next, as the engine counts them: it stops at 2000."""

MAX_COPIES = 20_000
"""Schemas that the engine makes of references and unions, beyond those that are written in the document. Takes it a
second and 200 MB."""

MAX_PATTERN_PAIRS = 20_000
"""Pairs of patterns in all `patternProperties`: a fifth of a second."""

MAX_REMAINDERS = 100_000
"""Of all `multipleOf`: half a second."""

_PER_OPTIONAL = 4
"""What a property that may be left out counts for."""


def check_complexity(schema: dict[str, Any]) -> None:
    """Raises NotCompiled. `schema` is within the limits on size and depth."""
    nodes = list(_nodes(schema))
    if sum(map(_choices, nodes)) > MAX_CHOICES:
        raise NotCompiled("response_format schema has too many optional properties or members of an enum")
    if sum("pattern" in node for node in nodes) > MAX_PATTERNS and any(map(_combines, nodes)):
        raise NotCompiled(f"response_format schema combines others and has more than {MAX_PATTERNS} patterns")
    check_cost([schema])


def check_cost(schemas: Sequence[dict[str, Any]]) -> None:
    """The same for what schemas that are compiled together cost together. Raises NotCompiled."""
    documents = [(schema, list(_nodes(schema))) for schema in schemas]
    if sum(_pattern_pairs(node) for _, nodes in documents for node in nodes) > MAX_PATTERN_PAIRS:
        raise NotCompiled("response_format schema has too many patternProperties")
    if sum(_remainders(node, root) for root, nodes in documents for node in nodes) > MAX_REMAINDERS:
        raise NotCompiled("response_format schema has a multipleOf that is too large, or too many of them")
    if sum(written_out(root, nodes) - len(nodes) for root, nodes in documents) > MAX_COPIES:
        raise NotCompiled("response_format schema combines references or unions too often; put less beside them")


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


def _pattern_pairs(node: dict[str, Any]) -> int:
    patterns = node.get("patternProperties")
    return len(cast(dict[str, Any], patterns)) ** 2 if isinstance(patterns, dict) else 0


def _remainders(node: dict[str, Any], root: dict[str, Any]) -> int:
    """States of the automaton for the numbers that a node allows; 0 for a node that says nothing of them.

    All that is said of the same value counts together. Powers of ten cost nothing.
    """
    multiples: list[int] = []
    waiting: list[Any] = [node]
    seen = set[int]()
    while waiting:
        said = waiting.pop()
        if not isinstance(said, dict) or id(cast(object, said)) in seen:
            continue
        fields = cast(dict[str, Any], said)
        seen.add(id(fields))
        value = fields.get("multipleOf")
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            digits = "".join(map(str, Decimal(repr(value)).as_tuple().digits))
            multiples.append(int(digits.rstrip("0")))
        for keyword in ("allOf", "anyOf", "oneOf"):
            members = fields.get(keyword)
            waiting += cast(list[Any], members) if isinstance(members, list) else []
        waiting.append(target(fields.get("$ref"), root))
    return math.lcm(*multiples) if multiples else 0
