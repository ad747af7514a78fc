"""What a request says about the prompt cache."""

from __future__ import annotations

from mlxcel.api.errors import invalid
from mlxcel.api.openai.schema import GenerationFields


def wants_cache(fields: GenerationFields) -> bool:
    """`cache_prompt`, at the root or inside `extra_body`; the root wins. Raises ApiError 400."""
    wanted = fields.cache_prompt
    if wanted is None:
        wanted = (fields.extra_body or {}).get("cache_prompt")
    if not isinstance(wanted, bool | None):
        raise invalid("extra_body.cache_prompt must be true or false", "extra_body.cache_prompt")
    return wanted is not False


def conversation(fields: GenerationFields) -> str:
    """What groups the requests of a conversation: `prompt_cache_key`, else `user`; empty without either."""
    if fields.prompt_cache_key:
        return f"key {fields.prompt_cache_key}"
    return f"user {fields.user}" if fields.user else ""
