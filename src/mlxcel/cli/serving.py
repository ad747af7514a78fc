"""Puts a server together: engine, application, HTTP, signals, and the order of their beginning and end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from mlxcel import heap
from mlxcel.cli.listener import Listener
from mlxcel.cli.loading import wait_loaded
from mlxcel.cli.protocol import EnvelopeProtocol
from mlxcel.config import NetworkConfig

if TYPE_CHECKING:
    from mlxcel.engine.engine import Engine

DRAIN_SECONDS = 5
"""How long running requests may go on once the server was told to stop."""

CLOSE_SECONDS = 5
"""How long the last bytes may take after that."""

TIDY_SECONDS = 60
"""How often memory that requests have freed goes back to the system."""

log = logging.getLogger(__name__)

MakeApp = Callable[["Engine"], Any]


def serve(engine: Engine, make_app: MakeApp, network: NetworkConfig, listener: Listener) -> None:
    """Serve on `listener` until a signal: first without a model, then with it.

    The first SIGINT or SIGTERM lets running requests end for DRAIN_SECONDS; the second one leaves at once.
    Raises ModelError or CommandError when the model cannot be loaded.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(engine, make_app, network, listener))


class _HttpServer(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process by the signal."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _serve(engine: Engine, make_app: MakeApp, network: NetworkConfig, listener: Listener) -> None:
    http = _HttpServer(_http_config(make_app(engine), network))
    draining = asyncio.Event()
    _stop_on_signals(http, draining)
    listener.listen()
    log.info("listening on %s, loading the model", listener.url)
    engine.start()
    serving = asyncio.create_task(http.serve(sockets=[listener.socket]))
    ready = asyncio.create_task(_announce(engine, listener.url))
    # Ends what does not end in time, so that every answer is complete before its connection is closed.
    drain = asyncio.create_task(_drain(engine, draining))
    tidying = asyncio.create_task(_tidy())
    try:
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and ready.exception():
            http.should_exit = True
        await serving
        if ready.done() and not draining.is_set():
            ready.result()
    finally:
        ready.cancel()
        drain.cancel()
        tidying.cancel()
        await engine.close()


async def _announce(engine: Engine, url: str) -> None:
    """Wait for the model and say what runs where. Raises ModelError or CommandError when there will be none."""
    info = await wait_loaded(engine)
    log.info("%s (%s) runs on %s", info.name, info.architecture or "no name", info.kernels or info.device)
    if info.chat_template is None:
        log.warning("the checkpoint has no chat template: chat needs --chat-template-file")
    stats = engine.cache_stats()
    kept = f"{stats.capacity_bytes >> 20} MiB" if stats.enabled else "off"
    budget = "no limit" if stats.kv_bytes_budget is None else f"{stats.kv_bytes_budget >> 20} MiB"
    log.info("keys and values: %s, %s; prompt cache: %s", stats.kv_cache_mode_effective or "none", budget, kept)
    log.info("%d slots of %d tokens; ready on %s", engine.slots, engine.slot_context, url)


async def _tidy() -> None:
    while True:
        await asyncio.sleep(TIDY_SECONDS)
        await asyncio.to_thread(heap.return_free_memory)


async def _drain(engine: Engine, draining: asyncio.Event) -> None:
    await draining.wait()
    await engine.close(drain=DRAIN_SECONDS)


def _http_config(app: Any, network: NetworkConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=EnvelopeProtocol,
        ws="none",
        loop="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=network.timeout,
        timeout_graceful_shutdown=DRAIN_SECONDS + CLOSE_SECONDS,
        ssl_certfile=network.ssl_cert_file,
        ssl_keyfile=network.ssl_key_file,
    )


def _stop_on_signals(http: uvicorn.Server, draining: asyncio.Event) -> None:
    def stop(number: signal.Signals) -> None:
        if http.should_exit:
            os._exit(128 + number)
        log.info("stopping; once more to leave at once")
        http.should_exit = True
        draining.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
