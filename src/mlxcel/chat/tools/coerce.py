"""Values of formats that are not JSON: from their text to the type that the tool's schema declares.

Nothing ever fails: a text that does not fit its type stays a string.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mlxcel.chat.tools.json_text import loads

_KINDS = {
    **dict.fromkeys(("int", "integer", "uint", "long", "int32", "int64"), "integer"),
    **dict.fromkeys(("num", "number", "float", "double"), "number"),
    **dict.fromkeys(("bool", "boolean"), "boolean"),
    **dict.fromkeys(("dict", "object"), "object"),
    **dict.fromkeys(("list", "array"), "array"),
    **dict.fromkeys(("str", "string"), "string"),
}
_INTEGER = re.compile(r"([+-]?\d{1,19})(?:\.0+)?\Z", re.ASCII)
_PLAIN_INTEGER = re.compile(r"[+-]?\d{1,19}\Z", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\Z", re.ASCII)
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_LAX_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_MAX_ALTERNATIVES = 64
_MAX_DEPTH = 16

_REFUSED = object()


class Rules(enum.Enum):
    """How strictly a format's values follow the schema."""

    LOOSE = enum.auto()
    """GLM, LongCat: only strings and integers do, all else is read as it looks."""
    STRICT = enum.auto()
    """MiniMax M3."""
    LAX = enum.auto()
    """MiniMax M2, Qwen3-Coder: STRICT, with the word null and more spellings of booleans."""


def coerce(raw: str, schema: Any, rules: Rules) -> Any:
    """The Python form of the JSON value that `raw` means under `schema` (anything but an object: no schema)."""
    value = _coerce(raw, schema, rules, 0)
    return _loose(raw) if value is _REFUSED else value


def is_plain_string(schema: Any) -> bool:
    """Whether every text is its own value under `schema`."""
    return isinstance(schema, Mapping) and _kind_of_name(cast(Mapping[str, Any], schema).get("type")) == "string"


def kind(schema: Any) -> str | None:
    """The declared type under its JSON schema name; None when there is none, or an unknown one."""
    if not isinstance(schema, Mapping):
        return None
    declared: Any = cast(Mapping[str, Any], schema).get("type")
    if isinstance(declared, Sequence) and not isinstance(declared, str):
        declared = next((name for name in cast(Sequence[Any], declared) if name not in (None, "null")), None)
    return _kind_of_name(declared)


def _kind_of_name(name: Any) -> str | None:
    return _KINDS.get(name.lower()) if isinstance(name, str) else None


def _coerce(raw: str, schema: Any, rules: Rules, depth: int) -> Any:
    """As `coerce`; _REFUSED where only the loose rule is left. A text that does not fit a declared type stays text."""
    fields: Mapping[str, Any] = cast(Mapping[str, Any], schema) if isinstance(schema, Mapping) else {}
    if rules is Rules.LAX and raw.strip().lower() == "null" and not is_plain_string(fields):
        return None
    declared = kind(fields)
    if declared is not None:
        value = _typed(raw, declared, fields, rules, depth)
        return raw if value is _REFUSED else value
    if rules is not Rules.LOOSE:
        return _from_choices(raw, fields, rules, depth)
    return _REFUSED


def _typed(raw: str, declared: str, schema: Mapping[str, Any], rules: Rules, depth: int) -> Any:
    if declared == "string":
        return raw
    if declared == "integer":
        return _integer(raw, _INTEGER)
    if rules is Rules.LOOSE:
        return _loose(raw)
    if declared == "number":
        value = _integer(raw, _PLAIN_INTEGER)
        return _float(raw) if value is _REFUSED else value
    if declared == "boolean":
        if rules is Rules.LAX:
            return _LAX_BOOLEANS.get(raw.strip().lower(), _REFUSED)
        return _BOOLEANS.get(raw.strip(), _REFUSED)
    return _container(raw, declared, schema, rules, depth)


def _container(raw: str, declared: str, schema: Mapping[str, Any], rules: Rules, depth: int) -> Any:
    try:
        value = loads(raw)
    except ValueError:
        value = None
    if isinstance(value, dict if declared == "object" else list):
        return cast(Any, value)
    if declared == "array" and depth < _MAX_DEPTH and raw.strip()[:1] not in ("", "{", "["):
        item = _coerce(raw, schema.get("items"), rules, depth + 1)
        return [_loose(raw) if item is _REFUSED else item]
    return _REFUSED


def _from_choices(raw: str, schema: Mapping[str, Any], rules: Rules, depth: int) -> Any:
    members: Any = schema.get("enum")
    if isinstance(members, Sequence) and not isinstance(members, str):
        for member in cast(Sequence[Any], members):
            if _text(member) == raw:
                return member
        return _REFUSED
    for name in ("anyOf", "oneOf"):
        choices: Any = schema.get(name)
        if isinstance(choices, Sequence) and not isinstance(choices, str) and depth < _MAX_DEPTH:
            for choice in cast(Sequence[Any], choices)[:_MAX_ALTERNATIVES]:
                value = _accepted(raw, choice, rules, depth + 1)
                if value is not _REFUSED:
                    return value
    return _REFUSED


def _accepted(raw: str, schema: Any, rules: Rules, depth: int) -> Any:
    """The value under one of several alternatives, _REFUSED when it does not fit that one."""
    if not isinstance(schema, Mapping):
        return _REFUSED
    fields = cast(Mapping[str, Any], schema)
    if fields.get("type") == "null":
        return None if raw.strip() == "null" else _REFUSED
    declared = kind(fields)
    if declared is not None:
        return _typed(raw, declared, fields, rules, depth)
    return _from_choices(raw, fields, rules, depth)


def _loose(raw: str) -> Any:
    try:
        return loads(raw)
    except ValueError:
        pass
    readers: tuple[Callable[[str], Any], ...] = (lambda text: _integer(text, _PLAIN_INTEGER), _float)
    for reader in readers:
        value = reader(raw)
        if value is not _REFUSED:
            return value
    return {"True": True, "False": False}.get(raw.strip(), raw)


def _integer(raw: str, pattern: re.Pattern[str]) -> Any:
    found = pattern.match(raw.strip())
    if found is None:
        return _REFUSED
    number = int(found.group(1) if pattern is _INTEGER else found.group())
    return number if -(2**63) <= number < 2**63 else _REFUSED


def _float(raw: str) -> Any:
    text = raw.strip()
    if not _FLOAT.match(text):
        return _REFUSED
    number = float(text)
    return number if number not in (float("inf"), float("-inf")) else _REFUSED


def _text(member: Any) -> str:
    """The text of an enum member as a model would write it."""
    if isinstance(member, bool):
        return "true" if member else "false"
    return "null" if member is None else str(member)
