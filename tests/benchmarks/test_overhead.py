"""The two loops that the overhead benchmark compares, on scripted tokens."""

from __future__ import annotations

import os
from typing import Any, cast

from benchmarks.overhead import STEPS, Paced, bare, served
from mlxcel.api.app import create_app
from mlxcel.config import ServerConfig
from mlxcel.engine.backend import Backend
from tests.api.stub import listening, run, started
from tests.engine.scripted import ScriptedBackend


def paced() -> tuple[ScriptedBackend, Backend]:
    backend = ScriptedBackend(follow=lambda fed: 97)
    return backend, cast("Backend", Paced(cast("Any", backend), 0.0))


def test_the_bare_loop_runs_all_steps_and_leaves_nothing() -> None:
    backend = ScriptedBackend(follow=lambda fed: 97)
    cost = bare(cast("Any", backend), 3)
    assert backend.widths == [3] * STEPS
    assert not backend.kv.sequences
    assert cost.wall > 0


def test_a_paced_backend_computes_the_first_step_of_each_width_only() -> None:
    backend, wrapped = paced()
    bare(wrapped, 1)
    bare(wrapped, 2)
    assert backend.widths == [1, 2]


def test_the_server_is_measured_through_its_streams() -> None:
    async def work() -> None:
        backend = cast("Any", Paced(cast("Any", ScriptedBackend(follow=lambda fed: 97)), 0.001))
        async with started(backend, ServerConfig()) as engine, listening(create_app(engine, ServerConfig())) as url:
            cost = await served(url, os.getpid(), 2)
            assert cost.wall > 0
            assert engine.snapshot().active_sequences == 0
            assert engine.snapshot().total_decode_tokens == 2 * STEPS

    run(work())
