"""What has to be done to a JSON Schema before the grammar engine sees it, so that every text it lets through is valid.

The engine refuses keywords that it does not know and that restrict the values. It is less strict than a validator in a
few places, which are closed here; and it takes keywords that mean nothing for unknown ones.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

from mlxcel.grammar.complexity import DATA, NAMED, check_complexity
from mlxcel.grammar.errors import NotCompiled
from mlxcel.grammar.unions import exclusive

_OPTIONS: dict[str, Any] = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    # A line break with its indentation, or a few blanks. Without an end to it a small model may write nothing else.
    "whitespace_pattern": r"\r?\n[ \t]{0,40}|[ \t]{1,4}",
    "coerce_one_of": False,
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}
"""All that decides how a schema is read."""

_ENGINE_KEYWORD = "x-guidance"
"""Holds the options. What a client puts there is overwritten."""

_FORMATS = frozenset(
    (
        *("date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6"),
        *("uri", "uri-reference", "iri", "iri-reference", "uri-template", "uuid", "regex"),
        *("json-pointer", "relative-json-pointer"),
    )
)
"""Those that the standard defines. Others restrict nothing."""

_LEAP = "(?:..(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29"
_DATE = f"^(?:....-(?:0[13-9]|1[0-2])-..|....-02-(?:[01].|2[0-8])|{_LEAP})"
_EXACT = {"date": _DATE, "date-time": f"{_DATE}.{{7}}[0-5]", "time": "^.{6}[0-5]"}
"""What else a value of a format must match: days that are in the calendar, and no leap seconds, which there are but a
few of."""

_KEYWORDS = frozenset(
    (
        *("if", "then", "else", "not", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
        *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
        *("$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"),
    )
)
"""Those that may be named in a message; anything else could come from the schema."""


def engine_schema(schema: dict[str, Any]) -> str:
    """The schema that the engine is to read, as JSON. `schema` is within the limits. What is wrong with it shows at the
    latest when the engine compiles it. Raises NotCompiled."""
    check_complexity(schema)
    return json.dumps({**_prepared(schema, schema), _ENGINE_KEYWORD: _OPTIONS})


def refusal(detail: str) -> NotCompiled:
    """What to tell the client when the engine has refused a schema with this message."""
    found = re.search(r"Unimplemented keys: \[(.*?)\]", detail)
    named = sorted(_KEYWORDS.intersection(re.findall(r'"([^"]*)"', found[1]))) if found else []
    if named:
        return NotCompiled(f"response_format schema uses keywords that are not supported: {', '.join(named)}")
    if "Default retriever does not fetch" in detail:
        return NotCompiled("response_format schema has a remote $ref; put what it refers to into $defs")
    if "oneOf constraints are not supported" in detail:
        return NotCompiled("response_format schema has a oneOf whose members overlap; use anyOf")
    return NotCompiled("response_format schema could not be compiled")


def _prepared(schema: Any, root: dict[str, Any]) -> Any:
    """A copy of a schema with its own subschemas prepared. No deeper than the limits allow."""
    if isinstance(schema, list):
        return [_prepared(member, root) for member in cast(list[Any], schema)]
    if isinstance(schema, float) and schema.is_integer() and abs(schema) < 2**53:
        return int(schema)  # the engine wants counts to look like whole numbers
    if not isinstance(schema, dict):
        return schema
    node = cast(dict[str, Any], schema)
    _check_names(node)
    _check_count(node)
    if _holds_huge([node.get("const"), node.get("enum")]):
        raise NotCompiled("response_format schema has a const or an enum with a number of more than 63 bits")
    out: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in DATA:
            out[keyword] = value
        elif keyword in NAMED and isinstance(value, dict):
            out[keyword] = {name: _prepared(member, root) for name, member in cast(dict[str, Any], value).items()}
        else:
            out[keyword] = _prepared(value, root)
    if out.get("uniqueItems") is False:
        del out["uniqueItems"]
    if "oneOf" in out and "anyOf" not in out and exclusive(node["oneOf"], root):
        out["anyOf"] = out.pop("oneOf")
    _make_exact(out)
    _keep_out(out)
    return out


def _make_exact(node: dict[str, Any]) -> None:
    name = node.get("format")
    if not isinstance(name, str):
        return
    if name not in _FORMATS:
        del node["format"]
    elif name in _EXACT:
        exact = {"pattern": _EXACT[name]}
        if "pattern" not in node:
            node |= exact
        elif isinstance(others := node.get("allOf", []), list):  # else the engine will refuse it
            node["allOf"] = [*cast(list[Any], others), exact]


def _keep_out(node: dict[str, Any]) -> None:
    """Move excluded bounds inwards by next to nothing where the engine would let one through: a whole number, with the
    other bound less than 1 away."""
    if node.get("type") == "integer":
        return
    for name, others, direction in (
        ("exclusiveMinimum", ("maximum", "exclusiveMaximum"), 1),
        ("exclusiveMaximum", ("minimum", "exclusiveMinimum"), -1),
    ):
        bound = node.get(name)
        far = [value for other in others if isinstance(value := node.get(other), int | float)]
        if isinstance(bound, int) and any(0 < (value - bound) * direction < 1 for value in far):
            node[name] = bound + direction * max(1e-9, abs(bound) * 1e-12)


def _check_names(node: dict[str, Any]) -> None:
    """Control characters can be written in several ways, and the engine would take one for an additional property."""
    names = [*_names(node.get("properties")), *_names(node.get("required"))]
    if any(re.search(r"[\x00-\x1f\x7f]", name) for name in names):
        raise NotCompiled("response_format schema names properties with control characters")


def _check_count(node: dict[str, Any]) -> None:
    """The engine counts a property that comes twice as two. Required ones come once."""
    least = node.get("minProperties")
    if isinstance(least, int | float) and least > len(set(_names(node.get("required")))):
        raise NotCompiled("response_format schema has a minProperties above the number of required properties")


def _holds_huge(data: Any) -> bool:
    """Whether there is a number that the engine would change: it has 64 bits for whole ones."""
    if isinstance(data, list):
        return any(map(_holds_huge, cast(list[Any], data)))
    if isinstance(data, dict):
        return _holds_huge(list(cast(dict[str, Any], data).values()))
    return isinstance(data, int | float) and not -(2**63) < data < 2**63


def _names(value: Any) -> list[str]:
    """The strings in a list, or the keys of an object."""
    return [name for name in cast(list[Any], value) if isinstance(name, str)] if isinstance(value, list | dict) else []
