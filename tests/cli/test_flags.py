"""The table as a whole: every row is reachable, every served row lands where it says, every other one is honest."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mlxcel.cli.configure import configure
from mlxcel.cli.flag import Flag, FlagError
from mlxcel.cli.flags import SERVED_FLAGS, SERVER_FLAGS
from mlxcel.cli.flags_unserved import UNSERVED_FLAGS
from mlxcel.cli.parser import parse
from mlxcel.config import ServerConfig

SETTINGS = {
    "--model": ("some-model", "some-model"),
    "--hf-repo": ("owner/name", "owner/name"),
    "--hf-token": ("hf_x", "hf_x"),
    "--revision": ("v1", "v1"),
    "--offline": (None, True),
    "--model-store-root": ("/models", Path("/models")),
    "--device": ("cpu", "cpu"),
    "--alias": ("b,a,b", ("a", "b")),
    "--warmup": ("--no-warmup", False),
    "--host": ("0.0.0.0", "0.0.0.0"),
    "--port": ("0", 0),
    "--api-key": ("a,b", ("a", "b")),
    "--api-prefix": ("v/", "/v"),
    "--timeout": ("9", 9),
    "--sse-ping-interval": ("0.5", 0.5),
    "--cors-origins": ("https://a, https://b", ("https://a", "https://b")),
    "--cors-methods": ("GET", "GET"),
    "--cors-headers": ("x-a", "x-a"),
    "--cors-credentials": (None, True),
    "--metrics": (None, True),
    "--metrics-port": ("9090", True),
    "--slots": ("--no-slots", False),
    "--ctx-size": ("4096", 4096),
    "--predict": ("7", 7),
    "--prefill-chunk-size": ("0", 0),
    "--parallel": ("2", 2),
    "--max-batch-size": ("3", 3),
    "--max-queue-depth": ("0", 0),
    "--prefill-grant-interval": ("0", 0),
    "--cont-batching": ("--no-cont-batching", True),
    "--temp": ("0", 0.0),
    "--top-k": ("0", 0),
    "--top-p": ("1", 1.0),
    "--min-p": ("0", 0.0),
    "--typical": ("0.5", 0.5),
    "--top-n-sigma": ("-1", 0.0),
    "--xtc-probability": ("0.5", 0.5),
    "--xtc-threshold": ("0.6", 0.6),
    "--repeat-penalty": ("1.1", 1.1),
    "--repeat-last-n": ("-1", -1),
    "--frequency-penalty": ("-2", -2.0),
    "--presence-penalty": ("2", 2.0),
    "--dry-multiplier": ("0.8", 0.8),
    "--dry-base": ("0.5", 0.5),
    "--dry-allowed-length": ("0", 0),
    "--dry-penalty-last-n": ("-1", -1),
    "--dry-sequence-breaker": (r"\n\\n.", ("\n\\n.",)),
    "--logit-bias": ("42-1.5", ((42, -1.5),)),
    "--ignore-eos": (None, True),
    "--mirostat": ("2", 2),
    "--mirostat-ent": ("3", 3.0),
    "--mirostat-lr": ("0", 0.0),
    "--dynatemp-range": ("0.5", 0.5),
    "--dynatemp-exp": ("2", 2.0),
    "--adaptive-target": ("-1", -1.0),
    "--adaptive-decay": ("0.99", 0.99),
    "--seed": ("42", 42),
    "--chat-template": ("{{ x }}", "{{ x }}"),
    "--chat-template-kwargs": ('{"a": 1}', {"a": 1}),
    "--reasoning-format": ("none", "none"),
    "--reasoning-alias-field": ("none", "none"),
    "--reasoning-budget": ("0", 0),
    "--reasoning": ("off", False),
    "--reasoning-effort": ("high", "high"),
    "--reasoning-preserve": (None, True),
    "--skip-chat-parsing": (None, True),
    "--prefill-assistant": ("--no-prefill-assistant", False),
    "--verbosity": ("1", 1),
    "--verbose": (None, 5),
    "--threads": ("3", 3),
    "--cpu-precision": ("exact", "exact"),
    "--cache-prompt": ("--no-cache-prompt", False),
    "--prompt-cache-enabled": ("off", False),
    "--no-prompt-cache": (None, True),
    "--prompt-cache-capacity-bytes": ("64M", 64 << 20),
    "--cache-ram": ("3", 3 << 20),
    "--prompt-cache-max-entries": ("7", 7),
    "--prompt-cache-ttl": ("60", 60),
    "--prompt-cache-min-prefix": ("8", 8),
    "--prompt-cache-snapshot-capacity-bytes": ("1.5G", 3 << 29),
    "--prompt-cache-snapshot-max-entries": ("9", 9),
    "--prompt-cache-snapshot-ttl": ("61", 61),
    "--apc-enabled": ("off", False),
    "--apc-block-size": ("32", 32),
    "--apc-num-blocks": ("100", 100),
    "--kv-cache-budget": ("2G", 2 << 30),
    "--kv-admission-watermark": ("0.25", 0.25),
    "--kv-cache-mode": ("fp16+turbo4", "fp16+turbo4"),
    "--cache-type-k": ("int8", "int8"),
    "--cache-type-v": ("turbo3", "turbo3"),
    "--turbo-boundary-v": ("0", 0),
    "--kv-bits": ("4", 4),
    "--kv-skip-last-layer": ("off", False),
    "--allow-json-object": (None, True),
    "--enable-preemption": (None, True),
    "--context-shift": (None, True),
    "--max-kv-size": ("4096", 4096),
    "--keep": ("-1", -1),
    "--decode-timeout": ("2.5", 2.5),
    "--log-file": ("/log", Path("/log")),
    "--log-disable": (None, True),
    "--log-colors": ("off", "off"),
    "--log-prefix": ("--no-log-prefix", False),
    "--log-timestamps": ("--no-log-timestamps", False),
}
"""For each served flag: its value (or the whole word, or nothing for a switch), and what lands in the configuration.
The rows that read files or need another flag have tests of their own."""

WITHOUT_EFFECT = {"--max-batch-prefill": "8", "--max-batch-prefill-tokens": "0"}
"""Taken from existing command lines, with a help text that says so."""

ALONE_ELSEWHERE = {
    "--apc-hash",
    "--api-key-file",
    "--chat-template-file",
    "--ssl-cert-file",
    "--ssl-key-file",
    "--help",
    "--version",
}


def configured(*argv: str, **environ: str) -> ServerConfig:
    return configure(parse(argv, SERVER_FLAGS, environ))


def value_at(config: ServerConfig, target: str) -> Any:
    section, _, field = target.partition(".")
    return getattr(getattr(config, section), field)


def test_no_spelling_and_no_variable_is_taken_twice() -> None:
    spellings = Counter(name for flag in SERVER_FLAGS for name in (*flag.names, *flag.off_names))
    variables = Counter(name for flag in SERVER_FLAGS for name in (*flag.env, *flag.off_env))
    assert [name for name, count in (spellings | variables).items() if count > 1] == []


def test_spellings_are_spelled_like_flags() -> None:
    for flag in SERVER_FLAGS:
        assert flag.name.startswith("--")
        assert "_" not in "".join((*flag.names, *flag.off_names))


def test_every_served_flag_is_tested_here() -> None:
    assert {flag.name for flag in SERVED_FLAGS} == SETTINGS.keys() | ALONE_ELSEWHERE | WITHOUT_EFFECT.keys()


def test_every_field_of_the_configuration_has_a_flag() -> None:
    config = ServerConfig()
    fields = {
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(config)
        for field in dataclasses.fields(getattr(config, section.name))
    }
    targets = {flag.target for flag in SERVED_FLAGS if flag.target}
    assert targets <= fields
    of_variables = {"cache.boundaries", "cache.trace", "cache.warm_up", "chat.reasoning_echo"}
    assert fields - targets == {"network.max_body_bytes", *of_variables}


@pytest.mark.parametrize("flag", [flag for flag in SERVED_FLAGS if flag.name in SETTINGS], ids=lambda flag: flag.name)
def test_a_served_flag_lands_in_the_configuration_by_every_spelling(flag: Flag) -> None:
    given, expected = SETTINGS[flag.name]
    assert value_at(ServerConfig(), flag.target) != expected
    if given is not None and given.startswith("--"):
        assert given in flag.off_names
        command_lines = [[name] for name in flag.off_names]
        text = "off"
    else:
        command_lines = [[name] if given is None else [name, given] for name in flag.names]
        text = given or "on"
    for argv in command_lines:
        assert value_at(configured(*argv), flag.target) == expected
    for variable in flag.env:
        assert value_at(configured(**{variable: text}), flag.target) == expected


def test_flags_without_effect_say_so() -> None:
    argv = [word for pair in WITHOUT_EFFECT.items() for word in pair]
    assert configured(*argv) == ServerConfig()
    for flag in SERVED_FLAGS:
        assert (flag.name in WITHOUT_EFFECT) == flag.help.startswith("No effect")


def test_the_default_in_the_help_is_the_default() -> None:
    """For the rows whose default is a plain value."""
    for flag in SERVED_FLAGS:
        if not flag.default or not flag.target.startswith(("engine", "cache", "network", "log")):
            continue
        try:
            value = flag.kind.parse(flag.default)
        except ValueError:
            continue
        value = flag.convert(value) if flag.convert else value
        assert value == value_at(ServerConfig(), flag.target), flag.name


@pytest.mark.parametrize(
    ("argv", "kept"),
    [
        ([], True),
        (["--no-cache-prompt"], False),
        (["--cache-prompt", "--no-prompt-cache"], False),
        (["--cache-prompt", "--prompt-cache-enabled", "off"], False),
        (["--prompt-cache-enabled", "on", "--no-cache-prompt"], False),
        (["--cache-ram", "0", "--prompt-cache-capacity-bytes", "1G"], False),
        (["--prompt-cache-capacity-bytes", "0"], True),
        (["--cache-ram", "-1"], True),
    ],
)
def test_the_prompt_cache_is_off_when_one_flag_says_so(argv: list[str], kept: bool) -> None:
    assert configured(*argv).cache.kept is kept


def test_a_budget_for_keys_and_values_has_two_words() -> None:
    budgets = [configured("--kv-cache-budget", text).cache.kv_budget for text in ("auto", "none", "0", "1.5G")]
    assert budgets == ["auto", None, None, 3 << 29]
    with pytest.raises(FlagError, match="--kv-cache-budget expects auto, none or a number of bytes"):
        configured("--kv-cache-budget", "much")


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "iq4_nl", "f32", "bf16"])
def test_cache_types_of_another_kind_are_refused(name: str) -> None:
    with pytest.raises(FlagError, match="-ctk expects f16 or fp16 or int8 or turbo4"):
        configured("-ctk", name)


def test_a_hash_function_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert configured("--apc-hash", "sha256").cache.apc_hash == "sha256"
    with pytest.raises(FlagError, match="--apc-hash blake3 needs the Python package blake3"):
        configured("--apc-hash", "blake3")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert configured(APC_HASH="blake3").cache.apc_hash == "blake3"


@pytest.mark.parametrize("flag", UNSERVED_FLAGS, ids=lambda flag: flag.name)
def test_a_flag_that_is_not_served_is_inert_or_refused(flag: Flag) -> None:
    """At every value it accepts nothing changes; at another value the start stops with its name."""
    assert flag.unserved
    inert = flag.unserved.inert
    accepted = [*inert.words, *(["anything"] if inert.any else []), *([f"{inert.at_most:g}"] if inert.at_most else [])]
    for text in accepted:
        words = text.split() * flag.values
        for name in flag.names:
            argv = [f"{name}={text}"] if flag.values == 1 else [name, *words]
            assert configured(*argv) == ServerConfig()
        for variable in flag.env:
            assert configured(**{variable: text}) == ServerConfig()
    if inert.any or {"on", "off"} <= set(inert.words):
        return
    wrong = ("off" if "on" in inert.words else "on") if flag.is_switch else "12345"
    for name in flag.names:
        with pytest.raises(FlagError) as error:
            configured(f"{name}={wrong}")
        message = str(error.value)
        assert message.startswith(name)
        assert flag.unserved.limit in message
        assert message.endswith(flag.unserved.instead)
    for variable in flag.env:
        with pytest.raises(FlagError, match=f"^{variable}"):
            configured(**{variable: wrong})


@pytest.mark.parametrize(
    "argv",
    [
        ["-ngl", "all"],
        ["--split-mode", "none"],
        ["--flash-attn", "on"],
        ["-fa", "auto"],
        ["--mmap"],
        ["--poll", "50"],
        ["--main-gpu", "0"],
        ["--jinja"],
        ["--no-webui"],
        ["--control-vector-layer-range", "1", "2"],
        ["--yarn-ext-factor", "-1.0"],
        ["--cache-reuse", "0"],
        ["--no-context-shift"],
        ["-b", "2048", "-ub", "512"],
        ["--cache-prompt"],
    ],
)
def test_common_command_lines_keep_working(argv: list[str]) -> None:
    assert configured(*argv) == ServerConfig()


def test_flags_that_may_be_repeated() -> None:
    sampling = configured(
        "--dry-sequence-breaker", "a", "-l", "1+2", "--dry-sequence-breaker", "b", "-l", "3-inf"
    ).sampling
    assert sampling.dry_sequence_breakers == ("a", "b")
    assert sampling.logit_bias == ((1, 2.0), (3, -math.inf))


@pytest.mark.parametrize(
    "argv",
    [
        ["--mirostat", "3"],
        ["--adaptive-decay", "1"],
        ["--typical", "0"],
        ["--logit-bias", "1"],
        ["--logit-bias", "x+1"],
        ["--logit-bias", "1+inf"],
        ["--dry-multiplier", "-1"],
        ["--top-n-sigma", "nan"],
    ],
)
def test_values_out_of_range(argv: list[str]) -> None:
    with pytest.raises(FlagError, match=f"^{argv[0]} expects"):
        configured(*argv)


@pytest.mark.parametrize(
    "argv",
    [
        ["-ngl", "20"],
        ["--flash-attn", "off"],
        ["--no-mmap"],
        ["--mlock"],
        ["--numa", "distribute"],
        ["--mmproj", "x.gguf"],
        ["--model-url", "https://x"],
        ["--control-vector", "x"],
        ["--tools", "all"],
        ["--gpt-oss-20b-default"],
        ["--yarn-ext-factor", "1"],
        ["-md", "draft"],
        ["--lora", "x"],
        ["--embeddings"],
        ["--log-prompts-dir", "x"],
    ],
)
def test_common_requests_that_cannot_be_met(argv: list[str]) -> None:
    with pytest.raises(FlagError, match=f"^{argv[0]}.*not served"):
        configured(*argv)


@pytest.mark.parametrize(
    "name",
    ["--slot-prompt-similarity", "--kv-unified", "--cache-idle-slots", "--ctx-checkpoints", "--checkpoint-min-step"],
)
def test_flags_that_are_not_known_at_all(name: str) -> None:
    with pytest.raises(FlagError, match=f"unknown flag {name}"):
        configured(name)
