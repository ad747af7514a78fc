"""JSON out of the text of Python literals."""

from __future__ import annotations

import re

from mlxcel.chat.tools.json_text import is_json

_WORDS = {"True": "true", "False": "false", "None": "null"}
# An unclosed string runs to the end of the text: nothing is read twice, and the result is no JSON.
_TOKEN = re.compile(
    r"""(?P<single>'(?:[^'\\]|\\.)*+(?:'|\\?\Z))|(?P<double>"(?:[^"\\]|\\.)*+(?:"|\\?\Z))|\b(?:True|False|None)\b""",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)|\"", re.DOTALL)


def to_json(text: str) -> str | None:
    """`text`, a Python dict or list of plain values, as JSON; None when that does not come out."""
    candidate = _TOKEN.sub(_rewrite, text)
    return candidate if is_json(candidate) else None


def _rewrite(found: re.Match[str]) -> str:
    if found["single"]:
        return f'"{_ESCAPED.sub(_requote, found["single"][1:-1])}"'
    return found["double"] or _WORDS[found[0]]


def _requote(found: re.Match[str]) -> str:
    if found[0] == '"':
        return '\\"'
    return "'" if found[1] == "'" else found[0]
