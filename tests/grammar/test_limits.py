"""Limits on schemas."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxcel.grammar.errors import GrammarError
from mlxcel.grammar.limits import MAX_BYTES, MAX_DEPTH, MAX_REFS, check_limits


def of_bytes(size: int) -> dict[str, Any]:
    return {"title": "\u00e9" + "x" * (size - len(b'{"title":""}') - 2)}


def measured(schema: Any) -> int:
    if isinstance(schema, dict):
        return 1 + max(map(measured, schema.values()), default=-1)
    return 1 + max(map(measured, schema), default=-1) if isinstance(schema, list) else 0


def of_refs(count: int) -> dict[str, Any]:
    return {"anyOf": [{"$ref": "#/$defs/a"}] * count, "$defs": {"a": {"type": "null"}}}


@pytest.mark.parametrize(("make", "limit"), [(of_bytes, MAX_BYTES), (of_refs, MAX_REFS)])
def test_what_is_at_a_limit_passes_and_what_is_above_does_not(make: Any, limit: int) -> None:
    check_limits(make(limit))
    with pytest.raises(GrammarError, match=f"too large: {limit + 1} "):
        check_limits(make(limit + 1))


def test_the_depth_is_that_of_the_document() -> None:
    deepest: Any = 1
    for _ in range(MAX_DEPTH):
        deepest = {"a": deepest}
    check_limits(deepest)
    for wrapped in ({"a": deepest}, {"a": [deepest]}):
        with pytest.raises(GrammarError, match=f"depth {measured(wrapped)} exceeds {MAX_DEPTH}"):
            check_limits(wrapped)


def test_a_very_deep_document_is_measured_and_not_recursed_into() -> None:
    schema: Any = {}
    for _ in range(100_000):
        schema = [schema]
    with pytest.raises(GrammarError, match="depth 100001 exceeds 32"):
        check_limits({"a": schema})
    # Taken apart step by step: freeing it all at once recurses in the interpreter itself.
    while schema:
        schema = schema.pop()


def test_bytes_are_those_of_compact_utf8() -> None:
    assert len(msgspec.json.encode(of_bytes(MAX_BYTES))) == MAX_BYTES
