"""The grammar of an answer that must call tools.

Only for templates whose calls are a JSON object in a fixed wrapper. When no grammar can be made, the caller goes
without: the prompt asks for the call, too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.grammar.complexity import check_cost
from mlxcel.grammar.errors import NotCompiled
from mlxcel.grammar.schema import engine_schema
from mlxcel.grammar.vocabulary import Vocabulary

MAX_BYTES = 64 * 1024
"""Of a whole grammar."""

MAX_CALLS = 16
"""In one answer. A small model may go on for ever."""


@dataclass(frozen=True, slots=True)
class WireForm:
    """How a template writes calls: `begin before {"name": ..., arguments_key: ...} after between before ... end`."""

    begin: str = ""
    before: str = ""
    after: str = ""
    between: str = ""
    end: str = ""
    arguments_key: str = "arguments"


HERMES = WireForm(before="<tool_call>\n", after="\n</tool_call>", between="\n")
MISTRAL_NEMO = WireForm(begin="[TOOL_CALLS][", between=", ", end="]")
LLAMA3 = WireForm(between="; ", arguments_key="parameters")
LLAMA3_TAGGED = WireForm(begin="<|python_tag|>", between="; ", arguments_key="parameters")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called."""

    name: str
    parameters: dict[str, Any] | None = None
    """JSON Schema; None: any object."""


def forced_tools(tools: Sequence[Tool], form: WireForm, vocabulary: Vocabulary, *, once: bool) -> str:
    """A grammar in llguidance's Lark dialect: calls of `tools`, at least one of them, or with `once` exactly one.

    Raises NotCompiled when there is no tool, or the grammar would be too large or too costly.
    """
    if not tools:
        raise NotCompiled("there is no tool to call")

    check_cost([_arguments(tool) for tool in tools])

    def literal(text: str) -> str:
        return _literal(text, vocabulary)

    more = "" if once else f"({literal(form.between)} call){{0,{MAX_CALLS - 1}}}"
    lines = [
        f"start: {literal(form.begin)} call {more} {literal(form.end)}",
        f"call: {literal(form.before)} function {literal(form.after)}",
        f"function: {' | '.join(f'function_{index}' for index in range(len(tools)))}",
    ]
    for index, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.name)}, "{form.arguments_key}": '
        lines.append(f'function_{index}: {json.dumps(head)} arguments_{index} "}}"')
        lines.append(f"arguments_{index}: %json {engine_schema(_arguments(tool))}")
    grammar = "\n".join(lines)
    if len(grammar.encode()) > MAX_BYTES:
        raise NotCompiled("the tools are too large for a grammar")
    return grammar


def _arguments(tool: Tool) -> dict[str, Any]:
    """The schema of a call's arguments, which are an object. Some clients write null for a keyword they do not use."""
    return {key: value for key, value in (tool.parameters or {}).items() if value is not None} | {"type": "object"}


def _literal(text: str, vocabulary: Vocabulary) -> str:
    """Terminals for a fixed text. Special tokens in it stand for themselves: nothing else may spell them."""
    parts: list[str] = []
    plain = b""
    for token in vocabulary.tokens_of(text):
        if vocabulary.is_special(token):
            parts += [_quoted(plain), f"<[{token}]>"]
            plain = b""
        else:
            plain += vocabulary.spelled(token)
    return " ".join(part for part in (*parts, _quoted(plain)) if part) or '""'


def _quoted(text: bytes) -> str:
    return json.dumps(text.decode()) if text else ""
