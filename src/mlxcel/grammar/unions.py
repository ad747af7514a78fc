"""Which unions of objects cannot overlap: each member requires a property to be a constant of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from mlxcel.grammar.references import target

_MAX_STEPS = 64
"""References that lead from one to the next."""


def exclusive(members: Any, root: dict[str, Any]) -> bool:
    """Whether no value can be valid under two of these members of a `oneOf`, as far as tags tell.

    root: the document, for its references. The engine sees this for itself, but through references only with a hint.
    """
    if not isinstance(members, list):
        return False
    tags = [dict(_tags(_resolved(member, root))) for member in cast(list[Any], members)]
    shared = [name for name in tags[0] if all(name in found for found in tags)] if tags else []
    return any(_all_differ([found[name] for found in tags]) for name in shared)


def _tags(member: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Properties that an object must have, with the constants that they may be."""
    required, properties = member.get("required"), member.get("properties")
    if member.get("type") != "object" or not isinstance(required, list) or not isinstance(properties, dict):
        return
    for name, schema in cast(dict[str, Any], properties).items():
        if name in required and isinstance(schema, dict):
            node = cast(dict[str, Any], schema)
            values = [node["const"]] if "const" in node else node.get("enum")
            if isinstance(values, list) and all(isinstance(value, str) for value in cast(list[Any], values)):
                yield name, cast(list[str], values)


def _all_differ(values: list[list[str]]) -> bool:
    return sum(map(len, map(set, values))) == len(set[str]().union(*values))


def _resolved(member: Any, root: dict[str, Any]) -> dict[str, Any]:
    """The schema behind local references that stand alone; an empty one when it cannot be found."""
    for _ in range(_MAX_STEPS):
        if not isinstance(member, dict):
            return {}
        node = cast(dict[str, Any], member)
        if node.get("$ref") is None:
            return node
        member = target(node["$ref"], root)
    return {}
