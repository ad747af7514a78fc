"""One answer of a model, and the message it makes."""

from __future__ import annotations

from dataclasses import dataclass

from mlxcel.chat.tools import Dialect, ToolSet
from mlxcel.engine.events import FinishReason

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH

TOOLS = ToolSet(
    {
        "get_weather": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
        },
        "send": {
            "type": "object",
            "properties": {
                "to": {"type": "array", "items": {"type": "string"}},
                "text": {"type": "string"},
                "options": {"type": "object", "properties": {"retries": {"type": "integer"}}},
                "weight": {"type": "number"},
                "level": {"enum": ["low", "high", 3]},
                "when": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            },
        },
        "now": {},
    }
)

OSLO = ("get_weather", '{"city": "Oslo"}')
OSLO_COMPACT = ("get_weather", '{"city":"Oslo"}')


@dataclass(frozen=True, slots=True)
class Case:
    """`text` makes `content` and `calls` (name, arguments)."""

    name: str
    text: str
    content: str
    calls: tuple[tuple[str, str], ...] = ()
    reason: FinishReason = STOP
    abandoned: int = 0
    """Calls that a stream begins although they are not in the message."""
    dialect: Dialect | None = None

    @property
    def finish_reason(self) -> str:
        """What the finish reason becomes."""
        return "tool_calls" if self.calls and self.reason is STOP else self.reason.value
