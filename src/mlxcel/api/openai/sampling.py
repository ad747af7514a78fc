"""From request fields to the engine's sampling parameters.

Each value comes from the first that has one: the request, the server's flags, the checkpoint's generation defaults,
the built-in default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from mlxcel.api.errors import invalid
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.config import EngineConfig, SamplingDefaults
from mlxcel.engine.request import SamplingParams

_SEEDS = 2**64
_MAX_COUNT = 2**31 - 1


def resolve_defaults(server: SamplingDefaults, checkpoint: Mapping[str, Any]) -> SamplingParams:
    """Parameters of a request that names none. Values of the checkpoint outside their range are left out."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(SamplingParams):
        value = getattr(server, field.name)
        if value is None and field.name != "seed":
            value = _checked(field.name, checkpoint.get(field.name))
        if value is not None:
            values[field.name] = value
    return _normalised(SamplingParams(**values))


def resolve_sampling(request: GenerationFields, defaults: SamplingParams) -> SamplingParams:
    """Parameters of one request. Raises ApiError 400 for a seed beyond 64 bits."""
    if request.seed is not None and request.seed >= _SEEDS:
        raise invalid("seed must be below 2**64", "seed")
    values = {
        "temperature": request.temperature,
        "top_k": request.top_k,
        "top_p": request.top_p,
        "min_p": request.min_p,
        "repetition_penalty": _first(request.repetition_penalty, request.repeat_penalty),
        "repetition_context_size": _first(request.repetition_context_size, request.repeat_last_n),
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "seed": request.seed,
    }
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return _normalised(dataclasses.replace(defaults, **given))


def with_choice_seed(sampling: SamplingParams, index: int) -> SamplingParams:
    """Parameters of choice `index` among several: seeded choices differ, and repeat."""
    if sampling.seed is None or index == 0:
        return sampling
    return dataclasses.replace(sampling, seed=(sampling.seed + index) % _SEEDS)


def resolve_max_tokens(request: GenerationFields, server: EngineConfig) -> int | None:
    """Generation budget; None: whatever the context leaves."""
    asked = _first(request.max_tokens, request.n_predict, request.max_completion_tokens)
    if asked is not None:
        return asked
    return server.n_predict if server.n_predict >= 0 else None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _checked(name: str, value: Any) -> Any:
    """`value` when a request could have carried it, else None."""
    try:
        return getattr(msgspec.convert({name: value}, GenerationFields), name)
    except msgspec.ValidationError:
        return None


def _normalised(sampling: SamplingParams) -> SamplingParams:
    """The wire's other ways to say "off" and "random" in the engine's terms, and counts within 32 bits."""
    return dataclasses.replace(
        sampling,
        top_k=min(max(sampling.top_k, 0), _MAX_COUNT),
        repetition_context_size=min(sampling.repetition_context_size, _MAX_COUNT),
        seed=None if sampling.seed == -1 else sampling.seed,
    )
