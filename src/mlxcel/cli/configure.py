"""From parsed arguments to the configuration of a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlxcel.cli.flag import FlagError
from mlxcel.cli.parser import Arguments
from mlxcel.cli.values import SIZE
from mlxcel.config import MIN_SLOT_CONTEXT, ServerConfig


def configure(arguments: Arguments, base: ServerConfig | None = None) -> ServerConfig:
    """`base` with what the arguments say put over it. Raises FlagError where they contradict each other."""
    if "--chat-template" in arguments and "--chat-template-file" in arguments:
        raise FlagError("--chat-template and --chat-template-file exclude each other")
    values: dict[str, dict[str, Any]] = {}
    for setting in arguments.settings:
        if not setting.flag.target:
            continue
        section, _, field = setting.flag.target.partition(".")
        fields = values.setdefault(section, {})
        value = setting.flag.convert(setting.value) if setting.flag.convert else setting.value
        fields[field] = (*fields.get(field, ()), *value) if setting.flag.adds else value
    config = base or ServerConfig()
    sections = {name: replace(getattr(config, name), **fields) for name, fields in values.items()}
    config = replace(config, **sections)
    _check(config)
    return config


def with_variables(config: ServerConfig, environ: Mapping[str, str]) -> ServerConfig:
    """`config` with what has a variable and no flag put over it. Raises FlagError."""
    cache = replace(
        config.cache,
        boundaries=environ.get("MLXCEL_DISABLE_BOUNDARY_SNAPSHOT") != "1",
        warm_up=environ.get("MLXCEL_DISABLE_CACHE_WARMUP") != "1",
        trace=environ.get("MLXCEL_APC_TRACE") == "1",
    )
    chat = config.chat
    if (size := environ.get("MLXCEL_REASONING_ECHO_MAX_BYTES")) is not None:
        try:
            chat = replace(chat, reasoning_echo=SIZE.parse(size) or 0)
        except ValueError as error:
            raise FlagError(f"MLXCEL_REASONING_ECHO_MAX_BYTES expects {error}, not {size!r}") from error
    return replace(config, cache=cache, chat=chat)


def _check(config: ServerConfig) -> None:
    network, engine = config.network, config.engine
    if (network.ssl_cert_file is None) != (network.ssl_key_file is None):
        raise FlagError("--ssl-cert-file and --ssl-key-file need each other")
    if engine.ctx_size and engine.ctx_size // engine.slots < MIN_SLOT_CONTEXT:
        raise FlagError(
            f"--ctx-size {engine.ctx_size} leaves {engine.ctx_size // engine.slots} tokens for each of "
            f"{engine.slots} slots; each needs at least {MIN_SLOT_CONTEXT}"
        )
