"""Limits on a schema, checked before anything else is done with it."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from mlxcel.grammar.errors import GrammarError

MAX_BYTES = 64 * 1024
"""Of compact UTF-8 JSON."""
MAX_DEPTH = 32
"""Of the document: its root is at 0, and each value of an object or array is one deeper than that."""
MAX_REFS = 64
"""Objects with a `$ref`."""


def check_limits(schema: Any) -> bytes:
    """The schema as compact JSON. Raises GrammarError when it is too large; the message says in which way."""
    depth, refs = _measure(schema)
    if depth > MAX_DEPTH:
        raise _too_large(f"depth {depth} exceeds {MAX_DEPTH}")
    if refs > MAX_REFS:
        raise _too_large(f"{refs} $ref entries exceed {MAX_REFS}")
    encoded = msgspec.json.encode(schema)
    if len(encoded) > MAX_BYTES:
        raise _too_large(f"{len(encoded)} bytes exceed {MAX_BYTES}")
    return encoded


def _measure(schema: Any) -> tuple[int, int]:
    """Depth and number of references, level by level: a document may be deeper than this program can recurse."""
    depth, refs, level = -1, 0, [schema]
    while level:
        depth += 1
        below: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                refs += "$ref" in node
                below += cast(dict[str, Any], node).values()
            elif isinstance(node, list):
                below += cast(list[Any], node)
        level = below
    return depth, refs


def _too_large(what: str) -> GrammarError:
    return GrammarError(f"response_format schema too large: {what}")
