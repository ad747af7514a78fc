"""Request fields this version knows and cannot honour: harmless when they ask for nothing, refused otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mlxcel.api.errors import invalid
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.config import SAMPLER_LETTERS, SAMPLERS

_INERT: Mapping[str, tuple[Any, ...]] = {
    "grammar": ("",),
    "json_schema": ({},),
    "samplers": (list(SAMPLERS), ";".join(SAMPLERS), SAMPLER_LETTERS),
}


def check_fields(request: GenerationFields) -> None:
    """Refuse fields that would have to act. Raises ApiError 400."""
    for name, inert in _INERT.items():
        if getattr(request, name) not in (None, *inert):
            raise invalid(f"'{name}' is not supported by this version", name)
