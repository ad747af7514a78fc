"""Where each sampling value comes from."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.sampling import resolve_defaults, resolve_max_tokens, resolve_sampling, with_choice_seed
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.config import EngineConfig, SamplingDefaults
from mlxcel.engine.request import SamplingParams

FIELDS = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.6,
    "min_p": 0.2,
    "repetition_penalty": 1.2,
    "repetition_context_size": 5,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.4,
}


def fields(**values: Any) -> GenerationFields:
    return msgspec.convert(values, GenerationFields)


@pytest.mark.parametrize("name", FIELDS)
def test_request_beats_flag_beats_checkpoint_beats_built_in(name: str) -> None:
    value = FIELDS[name]
    built_in = getattr(SamplingParams(), name)
    nothing = SamplingDefaults()
    assert getattr(resolve_defaults(nothing, {}), name) == built_in
    assert getattr(resolve_defaults(nothing, {name: value}), name) == value
    flag = SamplingDefaults(**{name: 1})
    assert getattr(resolve_defaults(flag, {name: value}), name) == 1
    defaults = resolve_defaults(flag, {name: value})
    assert getattr(resolve_sampling(fields(**{name: value}), defaults), name) == value
    assert getattr(resolve_sampling(fields(**{name: None}), defaults), name) == 1


def test_zero_is_a_value_like_any_other() -> None:
    zero = resolve_sampling(fields(temperature=0, top_k=0, min_p=0), SamplingParams(temperature=0.9))
    assert (zero.temperature, zero.top_k, zero.min_p) == (0, 0, 0)
    assert resolve_defaults(SamplingDefaults(temperature=0.0), {"temperature": 0.7}).temperature == 0


@pytest.mark.parametrize(
    "value", [None, "0.5", True, -1.0, 1e9, [0.5]], ids=["null", "text", "bool", "low", "high", "list"]
)
def test_unusable_checkpoint_values_are_left_out(value: Any) -> None:
    assert resolve_defaults(SamplingDefaults(), {"temperature": value}).temperature == 0.8


def test_a_checkpoint_sets_no_seed() -> None:
    assert resolve_defaults(SamplingDefaults(), {"seed": 5}).seed is None


def test_aliases_stand_behind_the_canonical_name() -> None:
    aliased = resolve_sampling(fields(repeat_penalty=1.5, repeat_last_n=9), SamplingParams())
    assert (aliased.repetition_penalty, aliased.repetition_context_size) == (1.5, 9)
    both = resolve_sampling(fields(repeat_penalty=1.5, repetition_penalty=1.1), SamplingParams())
    assert both.repetition_penalty == 1.1


def test_off_and_everything_in_the_engines_terms() -> None:
    sampling = resolve_sampling(fields(top_k=-1, repetition_context_size=-1), SamplingParams())
    assert (sampling.top_k, sampling.repetition_context_size) == (0, -1)
    assert resolve_sampling(fields(top_k=10**30), SamplingParams()).top_k == 2**31 - 1


def test_seeds() -> None:
    configured = resolve_defaults(SamplingDefaults(seed=3), {})
    assert resolve_sampling(fields(), configured).seed == 3
    assert resolve_sampling(fields(seed=-1), configured).seed is None
    assert resolve_sampling(fields(seed=2**64 - 1), configured).seed == 2**64 - 1
    assert resolve_defaults(SamplingDefaults(seed=-1), {}).seed is None
    with pytest.raises(ApiError, match="seed"):
        resolve_sampling(fields(seed=2**64), configured)


def test_choices_have_seeds_of_their_own() -> None:
    seeded = SamplingParams(seed=2**64 - 1)
    assert [with_choice_seed(seeded, index).seed for index in range(3)] == [2**64 - 1, 0, 1]
    assert with_choice_seed(SamplingParams(), 2).seed is None


@pytest.mark.parametrize(
    ("values", "n_predict", "expected"),
    [
        ({}, -1, None),
        ({}, 12, 12),
        ({}, 0, 0),
        ({"max_tokens": 0}, 12, 0),
        ({"max_tokens": 5, "n_predict": 6, "max_completion_tokens": 7}, -1, 5),
        ({"max_tokens": None, "n_predict": 6, "max_completion_tokens": 7}, -1, 6),
        ({"max_completion_tokens": 7}, -1, 7),
    ],
)
def test_generation_budget(values: dict[str, Any], n_predict: int, expected: int | None) -> None:
    assert resolve_max_tokens(fields(**values), EngineConfig(n_predict=n_predict)) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", "1"),
        ("top_p", 1.1),
        ("top_p", -0.1),
        ("min_p", 2),
        ("top_k", -2),
        ("top_k", 1.5),
        ("repetition_penalty", 0),
        ("repeat_last_n", -2),
        ("frequency_penalty", 1e30),
        ("seed", -2),
        ("seed", 1.5),
        ("seed", "7"),
        ("stop", 3),
        ("stop", ["a", 3]),
        ("stop", "x" * 1025),
        ("stop", ["x"] * 65),
        ("repetition_penalty", 1e-30),
        ("n", 0),
        ("stream", "yes"),
        ("model", 3),
        ("stream_options", True),
        ("xtc_probability", 1.5),
        ("xtc_threshold", 0.6),
        ("typical_p", 0),
        ("top_n_sigma", -1),
        ("thinking_budget", -2),
        ("logit_bias", 3),
        ("response_format", "text"),
    ],
)
def test_wrong_types_and_ranges(name: str, value: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{name}"):
        fields(**{name: value})


def test_stop_strings() -> None:
    assert fields().stop_strings == ()
    assert fields(stop="").stop_strings == ()
    assert fields(stop="a").stop_strings == ("a",)
    assert fields(stop=["a", "", "b"]).stop_strings == ("a", "b")
