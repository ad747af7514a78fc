"""Counts of the requests that were answered, for `/metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlxcel.engine.events import Finished, FinishReason


@dataclass(slots=True)
class RequestTotals:
    """Completed generation requests since the start, and what they took. Belongs to the event loop."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    """From the first prefill step of each request to its last token."""

    def record(self, choices: Sequence[Finished]) -> None:
        """Count one request by the ends of all its choices, which share a prompt; a failed one does not count."""
        if any(choice.reason is FinishReason.ERROR for choice in choices):
            return
        self.requests += 1
        self.prompt_tokens += choices[0].usage.prompt_tokens
        self.completion_tokens += sum(choice.usage.completion_tokens for choice in choices)
        self.seconds += max(choice.timings.prefill + choice.timings.decode for choice in choices)
