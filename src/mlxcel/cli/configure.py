"""From parsed arguments to the configuration of a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlxcel.cli.flag import FlagError
from mlxcel.cli.parser import Arguments
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
    """`config` with the switches over it that have a variable and no flag: `1` turns them."""
    cache = replace(
        config.cache,
        boundaries=environ.get("MLXCEL_DISABLE_BOUNDARY_SNAPSHOT") != "1",
        trace=environ.get("MLXCEL_APC_TRACE") == "1",
    )
    return replace(config, cache=cache)


def _check(config: ServerConfig) -> None:
    network, engine = config.network, config.engine
    if (network.ssl_cert_file is None) != (network.ssl_key_file is None):
        raise FlagError("--ssl-cert-file and --ssl-key-file need each other")
    if engine.ctx_size and engine.ctx_size // engine.slots < MIN_SLOT_CONTEXT:
        raise FlagError(
            f"--ctx-size {engine.ctx_size} leaves {engine.ctx_size // engine.slots} tokens for each of "
            f"{engine.slots} slots; each needs at least {MIN_SLOT_CONTEXT}"
        )
