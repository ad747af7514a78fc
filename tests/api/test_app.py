"""What the application does by itself, without a request."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import pytest

from mlxcel.api.app import create_app
from mlxcel.config import ServerConfig
from mlxcel.grammar.compiler import Compiler

from .stub import listening, run, says, started, until


@pytest.mark.parametrize("warmup", [True, False])
def test_what_requests_would_wait_for_is_made_once_the_model_is_there(
    warmup: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = threading.Event()
    monkeypatch.setattr(Compiler, "prepare", lambda self: prepared.set())
    config = ServerConfig()
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, warmup=warmup))

    async def work() -> None:
        backend: Any = says("Hello!")
        async with started(backend, config) as engine, listening(create_app(engine, config)):
            if warmup:
                await until(prepared.is_set)

    run(work())
    assert prepared.is_set() is warmup
