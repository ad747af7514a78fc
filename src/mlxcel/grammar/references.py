"""Where a schema's references lead."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote


def target(reference: Any, root: dict[str, Any]) -> dict[str, Any] | None:
    """The schema that a local reference names by its place in the document; None when it cannot be found so.

    root: the document.
    """
    if reference == "#":
        return root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return None
    found: Any = root
    for step in unquote(reference[2:]).split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = cast(dict[str, Any], found).get(step)
        elif isinstance(found, list) and step.isdecimal() and int(step) < len(cast(list[Any], found)):
            found = cast(list[Any], found)[int(step)]
        else:
            return None
    return cast(dict[str, Any], found) if isinstance(found, dict) else None
