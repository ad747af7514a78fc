"""The functions a request declares, and how a call finds its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

Schema = Mapping[str, Any]


class ToolSet:
    """Declared functions by name, each with the JSON schema of its parameters."""

    def __init__(self, schemas: Mapping[str, Schema], only: str | None = None) -> None:
        """only: the function a named `tool_choice` asks for; calls to others are not accepted."""
        self._schemas = dict(schemas)
        self._accepted = set(schemas) if only is None else {only} & set(schemas)

    @classmethod
    def of_request(cls, tools: Sequence[Mapping[str, Any]], only: str | None = None) -> ToolSet:
        """From a checked request: tools as chat completions has them (`function` inside) or as Responses has them."""
        schemas: dict[str, Schema] = {}
        for tool in tools:
            function = cast(Mapping[str, Any], tool.get("function") or tool)
            schemas[function["name"]] = _object(function.get("parameters"))
        return cls(schemas, only)

    def __bool__(self) -> bool:
        return bool(self._accepted)

    def accept(self, name: str) -> str | None:
        """The declared function that `name` means: that name, or what stands after its first dot. None: no such."""
        for candidate in (name, name.partition(".")[2]):
            if candidate in self._accepted:
                return candidate
        return None

    def properties(self, name: str) -> Schema:
        """Schemas of a function's parameters by key; empty when it is not declared or declares none."""
        schema = self._schemas.get(self.accept(name) or name, {})
        return _object(schema.get("properties"))


def _object(schema: Any) -> Schema:
    return cast(Schema, schema) if isinstance(schema, Mapping) else {}
