"""`response_format`: from the request's field to the rule that its answer is held to."""

from __future__ import annotations

from typing import Any, cast

import anyio.to_thread

from mlxcel.api.errors import ApiError, invalid
from mlxcel.api.openai.schema import ResponseFormat
from mlxcel.api.state import AppState, ServedModel
from mlxcel.engine.constraint import Rule

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


async def response_rule(state: AppState, model: ServedModel, schema: dict[str, Any] | None) -> Rule | None:
    """The rule for a schema, compiled off the event loop. Raises GrammarError."""
    if schema is None:
        return None
    return await anyio.to_thread.run_sync(model.grammars.schema, schema, limiter=state.grammar_threads)


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
