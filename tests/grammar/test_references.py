from __future__ import annotations

from typing import Any

import pytest

from mlxcel.grammar.references import target

ROOT: dict[str, Any] = {"$defs": {"a/b": {"x": 1}, "c~d": {"x": 2}, "e f": {"x": 3}, "list": [{"x": 4}], "text": "x"}}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", ROOT),
        ("#/$defs/a~1b", {"x": 1}),
        ("#/$defs/c~0d", {"x": 2}),
        ("#/$defs/e%20f", {"x": 3}),
        ("#/%24defs/e%20f", {"x": 3}),
        ("#/$defs/list/0", {"x": 4}),
        ("#/$defs/list/1", None),
        ("#/$defs/list/x", None),
        ("#/$defs/text", None),
        ("#/$defs/text/0", None),
        ("#/nowhere/0", None),
        ("#anchor", None),
        ("https://example.org/schema", None),
        (3, None),
        (None, None),
    ],
)
def test_local_references_are_places_in_the_document(reference: Any, found: Any) -> None:
    assert target(reference, ROOT) == found
