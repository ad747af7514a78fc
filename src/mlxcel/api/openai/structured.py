"""What an answer is held to: the schema of `response_format`, or the tools of a forced `tool_choice`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import anyio.to_thread

from mlxcel.api.errors import ApiError, invalid
from mlxcel.api.openai.schema import ResponseFormat
from mlxcel.api.state import AppState, ServedModel
from mlxcel.chat.dialects import Lead
from mlxcel.chat.prompt import PromptBuilder
from mlxcel.chat.tool_choice import Choice, ToolUse
from mlxcel.chat.tools import Dialect
from mlxcel.engine.constraint import Rule
from mlxcel.grammar.compiler import CompiledRule
from mlxcel.grammar.errors import GrammarError
from mlxcel.grammar.forced_tools import HERMES, LLAMA3, LLAMA3_TAGGED, MISTRAL_NEMO, Tool, WireForm

log = logging.getLogger(__name__)

_FIELD = "response_format"


def wanted_schema(format: ResponseFormat | None, *, allow_json_object: bool) -> dict[str, Any] | None:
    """The JSON Schema that an answer must satisfy; None: any text will do. Raises ApiError 400."""
    match None if format is None else format.type:
        case None | "text":
            return None
        case "json_schema":
            return _schema(format)
        case "json_object" if allow_json_object:
            return {"type": "object"}
        case "json_object":
            raise _refused("type 'json_object' is not supported: use 'json_schema' and say what the object holds")
        case _:
            raise _refused("type must be 'text' or 'json_schema'")


async def response_rule(
    state: AppState, model: ServedModel, schema: dict[str, Any] | None, lead: Lead | None = None
) -> Rule | None:
    """The rule for a schema, compiled off the event loop. lead: what comes before the answer. Raises GrammarError."""
    if schema is None:
        return None
    return await _compiled(state, lambda: model.grammars.schema(schema), lead)


async def tool_rule(
    state: AppState, model: ServedModel, tools: ToolUse, lead: Lead | None, *, parallel: bool
) -> Rule | None:
    """The rule "calls of these tools", compiled off the event loop; parallel: more than one may be called.

    None: the model is free, because it was asked to call nothing, or its way to write calls is not for a grammar: the
    instruction in the prompt has to do then.
    """
    form = _wire_form(model.prompts)
    if not tools.forced or form is None:
        return None
    functions = [Tool(tool["function"]["name"], tool["function"].get("parameters")) for tool in tools.shown]
    once = tools.choice is Choice.NAMED or not parallel
    try:
        return await _compiled(state, lambda: model.grammars.forced_tools(functions, form, once=once), lead)
    except GrammarError as error:
        log.warning("a forced tool_choice goes without a grammar: %s", error)
        return None


async def _compiled(state: AppState, compile: Callable[[], CompiledRule], lead: Lead | None) -> Rule:
    def work() -> Rule:
        rule = compile()
        return rule if lead is None else rule.after_reasoning(lead.close, lead.opening)

    return await anyio.to_thread.run_sync(work, limiter=state.grammar_threads)


def _wire_form(prompts: PromptBuilder) -> WireForm | None:
    """How calls are written, for the dialects that write JSON in a fixed wrapper. Where nothing tells what a model's
    own way is, one way is as good as another."""
    match prompts.tool_dialect:
        case Dialect.HERMES | None:
            return HERMES
        case Dialect.MISTRAL_NEMO:
            return MISTRAL_NEMO
        case Dialect.LLAMA3:
            return LLAMA3 if prompts.writes('"parameters":') else LLAMA3_TAGGED
        case _:
            return None


def _schema(format: ResponseFormat | None) -> dict[str, Any]:
    wrapper: Any = None if format is None else format.json_schema
    if not isinstance(wrapper, dict):
        raise _refused("json_schema must be an object")
    schema: Any = cast(dict[str, Any], wrapper).get("schema")
    if schema is None:
        raise _refused("json_schema.schema is required")
    if not isinstance(schema, dict):
        raise _refused("json_schema.schema must be an object")
    return cast(dict[str, Any], schema)


def _refused(what: str) -> ApiError:
    return invalid(f"{_FIELD}: {what}", _FIELD)
