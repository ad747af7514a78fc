"""Where each sampling value comes from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import pytest

from mlxcel.api.errors import ApiError
from mlxcel.api.openai.sampling import (
    resolve_defaults,
    resolve_loops,
    resolve_max_tokens,
    resolve_sampling,
    with_choice_seed,
)
from mlxcel.api.openai.schema import GenerationFields
from mlxcel.config import EngineConfig, SamplingDefaults
from mlxcel.engine.loops import LoopRule
from mlxcel.engine.request import SamplingParams

FIELDS = {
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.6,
    "min_p": 0.2,
    "typical_p": 0.7,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.4,
    "xtc_threshold": 0.2,
    "repetition_penalty": 1.2,
    "repetition_context_size": 5,
    "frequency_penalty": 0.3,
    "presence_penalty": -0.4,
    "dry_multiplier": 0.8,
    "dry_base": 1.5,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": 128,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
    "dynatemp_range": 0.3,
    "dynatemp_exponent": 2.0,
    "adaptive_target": 0.4,
    "adaptive_decay": 0.8,
}
OTHERS = {"min_keep", "p_less", "dry_sequence_breakers", "logit_bias", "ignore_eos", "seed"}


def fields(**values: Any) -> GenerationFields:
    return msgspec.json.decode(msgspec.json.encode(values), type=GenerationFields)


def test_every_parameter_is_tested_here_and_has_a_field_and_a_flag() -> None:
    parameters = {field.name for field in dataclasses.fields(SamplingParams)}
    assert parameters == FIELDS.keys() | OTHERS
    assert parameters <= set(GenerationFields.__struct_fields__)
    assert {field.name for field in dataclasses.fields(SamplingDefaults)} == parameters - {"p_less", "min_keep"}


@pytest.mark.parametrize("name", FIELDS)
def test_request_beats_flag_beats_checkpoint_beats_built_in(name: str) -> None:
    value = FIELDS[name]
    built_in = getattr(SamplingParams(), name)
    nothing = SamplingDefaults()
    assert getattr(resolve_defaults(nothing, {}), name) == built_in != value
    assert getattr(resolve_defaults(nothing, {name: value}), name) == value
    flag = SamplingDefaults(**{name: 1})
    assert getattr(resolve_defaults(flag, {name: value}), name) == 1
    defaults = resolve_defaults(flag, {name: value})
    assert getattr(resolve_sampling(fields(**{name: value}), defaults), name) == value
    assert getattr(resolve_sampling(fields(**{name: None}), defaults), name) == 1


def test_switches() -> None:
    assert resolve_sampling(fields(p_less=True), SamplingParams()).p_less
    assert resolve_sampling(fields(min_keep=5), SamplingParams()).min_keep == 5
    assert resolve_sampling(fields(min_keep=2**60), SamplingParams()).min_keep == 2**31 - 1
    on = resolve_defaults(SamplingDefaults(ignore_eos=True), {})
    assert resolve_sampling(fields(), on).ignore_eos
    assert not resolve_sampling(fields(ignore_eos=False), on).ignore_eos


@pytest.mark.parametrize(
    ("written", "bias"),
    [
        ({}, {}),
        ([], {}),
        ({"5": -100, "7": 1.5}, {5: -100.0, 7: 1.5}),
        ({"5": False}, {5: -math.inf}),
        ([[5, 2], [7, False]], {5: 2.0, 7: -math.inf}),
        ([[5, 2], [5, 3], [6, False], [6, 9]], {5: 5.0, 6: -math.inf}),
    ],
)
def test_token_bias(written: Any, bias: dict[int, float]) -> None:
    assert dict(resolve_sampling(fields(logit_bias=written), SamplingParams()).logit_bias) == bias
    flags = resolve_defaults(SamplingDefaults(logit_bias=((1, 1.0),)), {})
    assert resolve_sampling(fields(), flags).logit_bias == ((1, 1.0),)
    assert dict(resolve_sampling(fields(logit_bias=written), flags).logit_bias) == bias


def test_breakers() -> None:
    assert resolve_sampling(fields(), SamplingParams()).dry_sequence_breakers == ("\n", ":", '"', "*")
    mixed = resolve_sampling(fields(dry_sequence_breakers=[1, "\n", "ab"]), SamplingParams())
    assert mixed.dry_sequence_breakers == (1, "\n", "ab")
    for nothing in ([], ["none"]):
        assert resolve_sampling(fields(dry_sequence_breakers=nothing), SamplingParams()).dry_sequence_breakers == ()
    flags = resolve_defaults(SamplingDefaults(dry_sequence_breakers=("x", "y")), {})
    assert resolve_sampling(fields(), flags).dry_sequence_breakers == ("x", "y")
    assert resolve_defaults(SamplingDefaults(dry_sequence_breakers=("none",)), {}).dry_sequence_breakers == ()
    assert len(resolve_sampling(fields(dry_sequence_breakers=[*range(900)]), SamplingParams()).dry_sequence_breakers)


@pytest.mark.parametrize(
    ("name", "value"),
    [("logit_bias", {"5": True}), ("logit_bias", [[5, True]]), ("dry_sequence_breakers", ["x"] * 65), ("seed", 2**64)],
)
def test_what_the_types_cannot_say(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        resolve_sampling(fields(**{name: value}), SamplingParams())
    assert (caught.value.status, caught.value.param) == (400, name)


RULE = LoopRule(2, 30, 3)


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ({}, RULE),
        ({"max_pattern_size": None, "min_count": None}, RULE),
        ({"min_pattern_size": 1, "max_pattern_size": 20, "min_count": 4}, LoopRule(1, 20, 4)),
        ({"max_pattern_size": 20, "min_count": 4}, LoopRule(0, 20, 4)),
        ({"max_pattern_size": 0}, None),
        ({"max_pattern_size": 20}, None),
        ({"max_pattern_size": 20, "min_count": 1}, None),
        ({"min_pattern_size": 3}, None),
        ({"min_count": 4}, None),
    ],
)
def test_any_loop_field_replaces_the_rule_of_the_server(written: dict[str, Any], rule: LoopRule | None) -> None:
    assert resolve_loops(fields(**written), RULE) == rule
    assert resolve_loops(fields(**written), None) == (rule if written and rule is not RULE else None)


def test_zero_is_a_value_like_any_other() -> None:
    zero = resolve_sampling(fields(temperature=0, top_k=0, min_p=0), SamplingParams(temperature=0.9))
    assert (zero.temperature, zero.top_k, zero.min_p) == (0, 0, 0)
    assert resolve_defaults(SamplingDefaults(temperature=0.0), {"temperature": 0.7}).temperature == 0


@pytest.mark.parametrize(
    "value", [None, "0.5", True, -1.0, 1e9, [0.5]], ids=["null", "text", "bool", "low", "high", "list"]
)
def test_unusable_checkpoint_values_are_left_out(value: Any) -> None:
    assert resolve_defaults(SamplingDefaults(), {"temperature": value}).temperature == 0.8


@pytest.mark.parametrize(("name", "value"), [("repetition_penalty", 0), ("min_p", -1), ("typical_p", 0)])
def test_checkpoint_values_out_of_range_are_left_out(name: str, value: float) -> None:
    assert resolve_defaults(SamplingDefaults(), {name: value}) == SamplingParams()


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
    huge = fields(top_k=10**30, dry_allowed_length=10**30, dry_penalty_last_n=10**30, repeat_last_n=10**30)
    clamped = resolve_sampling(huge, SamplingParams())
    counts = (clamped.top_k, clamped.dry_allowed_length, clamped.dry_penalty_last_n, clamped.repetition_context_size)
    assert counts == (2**31 - 1,) * 4


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
        ("min_keep", -1),
        ("min_keep", 1.5),
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
        ("typical_p", 1.01),
        ("top_n_sigma", -1),
        ("top_n_sigma", 1e300),
        ("dry_multiplier", -0.1),
        ("dry_base", -1),
        ("dry_allowed_length", -1),
        ("dry_penalty_last_n", -2),
        ("dry_sequence_breakers", "x"),
        ("dry_sequence_breakers", [1.5]),
        ("dry_sequence_breakers", [-1]),
        ("dry_sequence_breakers", [1] * 1025),
        ("mirostat", 3),
        ("mirostat_tau", -1),
        ("mirostat_eta", -0.1),
        ("dynatemp_range", -0.1),
        ("dynatemp_exponent", -1),
        ("adaptive_target", 1.1),
        ("adaptive_decay", 1.0),
        ("p_less", 1),
        ("ignore_eos", 1),
        ("max_pattern_size", -1),
        ("min_pattern_size", 0.5),
        ("min_count", -1),
        ("logit_bias", {"5": 101}),
        ("logit_bias", {"5": "1"}),
        ("logit_bias", {"-5": 1}),
        ("logit_bias", {"five": 1}),
        ("logit_bias", [[5]]),
        ("logit_bias", [[5, -101]]),
        ("logit_bias", [["five", 1]]),
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
