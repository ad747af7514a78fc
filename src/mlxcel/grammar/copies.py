"""How often the grammar engine writes out parts of a schema before it measures what comes of them.

It does so with what a reference leads to, where other keywords stand beside it, and for each member of a union with
what stands beside that. Inside one another these multiply: a kilobyte of schema can ask for gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from mlxcel.grammar.references import target

_DEFINITIONS = frozenset({"$defs", "definitions"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})
_SILENT = frozenset(
    (
        *("title", "description", "default", "examples", "readOnly", "writeOnly", "$comment", "$anchor", "$schema"),
        *("contentEncoding", "contentMediaType", "contentSchema"),
    )
)
"""Keywords that the engine does not see: beside them a reference stands alone."""
_UNIONS = ("anyOf", "oneOf")
_LEAVES = frozenset({"const", "enum", *_SILENT, *_DEFINITIONS, *_UNIONS, "$ref", "allOf"})

_MAX_STEPS = 10
"""References with something beside them that lead from one to the next. Each could double what came before."""
_MAX_WORK = 100_000
_MANY = 10**9

Size = tuple[int, int]
"""Schemas in one value, and how many values there are."""


def written_out(schema: dict[str, Any], nodes: list[dict[str, Any]]) -> int:
    """About how many schemas the engine makes of a document. nodes: those in it. A reference that is not followed here,
    by another name than its place, counts as very many where other keywords stand beside it."""
    renamed = any("$id" in node for node in nodes if node is not schema)
    counter = _Counter(None if renamed else schema)
    roots = [schema, *(value for node in nodes for value in _definitions(node))]
    return sum(counter.whole(root, 0) for root in roots)


def _definitions(node: dict[str, Any]) -> Iterator[Any]:
    for keyword in _DEFINITIONS & node.keys():
        if isinstance(node[keyword], dict):
            yield from cast(dict[str, Any], node[keyword]).values()


class _Counter:
    def __init__(self, root: dict[str, Any] | None) -> None:
        """root: what references begin from; None if that is not the same for all."""
        self._root = root
        self._known: dict[tuple[int, int, bool], Size] = {}
        self._entered: set[int] = set()

    def whole(self, schema: Any, steps: int) -> int:
        """All in a schema that stands for a value of its own, or in a list of such."""
        if isinstance(schema, list):
            total = 0
            for member in cast(list[Any], schema):
                total += self.whole(member, steps)
            return total
        count, values = self._size(schema, steps, merged=False)
        return count * values

    def _size(self, schema: Any, steps: int, *, merged: bool) -> Size:
        """merged: other schemas are about the same value. steps: references that have led here."""
        if not isinstance(schema, dict):
            return 0, 1
        if steps > _MAX_STEPS or len(self._known) > _MAX_WORK:
            return _MANY, 1
        node = cast(dict[str, Any], schema)
        key = (id(node), steps, merged)
        if key not in self._known:
            if id(node) in self._entered:  # the engine refuses what is merged with itself
                return 1, 1
            self._entered.add(id(node))
            self._known[key] = self._measured(node, steps, merged)
            self._entered.discard(id(node))
        return self._known[key]

    def _measured(self, node: dict[str, Any], steps: int, merged: bool) -> Size:
        merged = merged or len(node.keys() - _SILENT - _DEFINITIONS) > 1
        count, values = 1, 1
        for keyword, value in node.items():
            if keyword in _NAMED and isinstance(value, dict):
                count += self.whole(list(cast(dict[str, Any], value).values()), steps)
            elif keyword not in _LEAVES:
                count += self.whole(value, steps)
        both = _members(node, "allOf")
        parts = [self._size(member, steps, merged=merged or len(both) > 1) for member in both]
        if "$ref" in node and merged:
            parts.append(self._referred(node["$ref"], steps + 1))
        for part in parts:
            count, values = count + part[0], values * part[1]
        for keyword in _UNIONS:
            options = [self._size(member, steps, merged=merged) for member in _members(node, keyword)]
            if options:
                alternatives = sum(option[1] for option in options)
                count += sum(option[0] * option[1] for option in options) // alternatives
                values *= alternatives
        return count, values

    def _referred(self, reference: Any, steps: int) -> Size:
        if self._root is None or not (reference == "#" or str(reference).startswith("#/")):
            return _MANY, 1
        return self._size(target(reference, self._root), steps, merged=True)


def _members(node: dict[str, Any], keyword: str) -> list[Any]:
    value = node.get(keyword)
    return cast(list[Any], value) if isinstance(value, list) else []
