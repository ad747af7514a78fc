"""From request fields to the engine's sampling parameters.

Each value comes from the first that has one: the request, the server's flags, the checkpoint's generation defaults,
the built-in default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mlxcel.api.errors import invalid
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.config import EngineConfig, SamplingDefaults
from mlxcel.engine.loops import LoopRule
from mlxcel.engine.request import SamplingParams

_SEEDS = 2**64
_MAX_COUNT = 2**31 - 1
_MAX_BREAKER_TEXTS = 64
"""Every one is looked for at every token, on the thread that all rows share."""
_FIELDS = tuple(field.name for field in dataclasses.fields(SamplingParams))
_OTHER_NAMES = {"repetition_penalty": "repeat_penalty", "repetition_context_size": "repeat_last_n"}


def resolve_defaults(server: SamplingDefaults, checkpoint: Mapping[str, Any]) -> SamplingParams:
    """Parameters of a request that names none. Values of the checkpoint outside their range are left out."""
    values = {name: _checked(name, value) for name, value in checkpoint.items() if name in _FIELDS and name != "seed"}
    flags = {field.name: getattr(server, field.name) for field in dataclasses.fields(server)}
    return _normalised(dataclasses.replace(SamplingParams(), **(_given(values) | _given(flags))))


def resolve_sampling(request: GenerationFields, defaults: SamplingParams) -> SamplingParams:
    """Parameters of one request. Raises ApiError 400 for what its type cannot say: a seed beyond 64 bits, a bias of
    `true`, too many breakers."""
    if request.seed is not None and request.seed >= _SEEDS:
        raise invalid("seed must be below 2**64", "seed")
    values: dict[str, Any] = {name: getattr(request, name) for name in _FIELDS}
    for name, other in _OTHER_NAMES.items():
        values[name] = _first(values[name], getattr(request, other))
    if request.logit_bias is not None:
        values["logit_bias"] = _bias(request.logit_bias)
    if request.dry_sequence_breakers is not None:
        values["dry_sequence_breakers"] = tuple(request.dry_sequence_breakers)
        if sum(isinstance(breaker, str) for breaker in request.dry_sequence_breakers) > _MAX_BREAKER_TEXTS:
            raise invalid(f"there may be {_MAX_BREAKER_TEXTS} texts at most", "dry_sequence_breakers")
    return _normalised(dataclasses.replace(defaults, **_given(values)))


def resolve_loops(request: GenerationFields, default: LoopRule | None) -> LoopRule | None:
    """When to end a text that repeats itself. Any of the three fields replaces the default; the others are then 0."""
    fields = (request.min_pattern_size, request.max_pattern_size, request.min_count)
    if fields == (None, None, None):
        return default
    rule = LoopRule(*(value or 0 for value in fields))
    return rule if rule.active else None


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


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _checked(name: str, value: Any) -> Any:
    """`value` when a request could have carried it, else None."""
    try:
        return getattr(msgspec.convert({name: value}, GenerationFields), name)
    except msgspec.ValidationError:
        return None


def _bias(written: Mapping[int, float | bool] | Sequence[tuple[int, float | bool]]) -> tuple[tuple[int, float], ...]:
    """Each token once: what is said of it several times adds up. Raises ApiError 400."""
    bias: dict[int, float] = {}
    for token, value in written.items() if isinstance(written, Mapping) else written:
        if value is True:
            raise invalid("a bias is a number, or false to ban the token", "logit_bias")
        bias[token] = bias.get(token, 0.0) + (-math.inf if value is False else value)
    return tuple(bias.items())


def _normalised(sampling: SamplingParams) -> SamplingParams:
    """The wire's other ways to say "off" and "random" in the engine's terms, and counts within 32 bits."""
    breakers = sampling.dry_sequence_breakers
    return dataclasses.replace(
        sampling,
        top_k=min(max(sampling.top_k, 0), _MAX_COUNT),
        min_keep=min(sampling.min_keep, _MAX_COUNT),
        repetition_context_size=min(sampling.repetition_context_size, _MAX_COUNT),
        dry_allowed_length=min(sampling.dry_allowed_length, _MAX_COUNT),
        dry_penalty_last_n=min(sampling.dry_penalty_last_n, _MAX_COUNT),
        dry_sequence_breakers=() if "none" in breakers else breakers,
        seed=None if sampling.seed == -1 else sampling.seed,
    )
