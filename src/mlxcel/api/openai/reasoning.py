"""How long the reasoning of an answer may be."""

from __future__ import annotations

from mlxcel.api.errors import invalid
from mlxcel.api.openai.schema import GenerationFields

_BUDGETS = ("thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget", "thinking_budget")
"""One field under all its names; the first that is there counts."""


def resolve_budget(request: GenerationFields, server: int, most: int) -> int | None:
    """Tokens that a reasoning block may have; None: any number.

    server: the budget of requests that name none; -1: any number.
    most: tokens the answer can have at all.
    Raises ApiError 400 when the request asks for more than that.
    """
    for name in _BUDGETS:
        budget: int | None = getattr(request, name)
        if budget is None:
            continue
        if budget > most:
            raise invalid(f"{name} is {budget}, but an answer has {most} tokens at most", name)
        return budget if budget >= 0 else None
    return server if server >= 0 else None
