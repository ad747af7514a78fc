"""The HTTP server: `mlxcel-server` and `mlxcel serve`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from mlxcel import __version__
from mlxcel.cli.command import Command, CommandError
from mlxcel.cli.configure import configure, with_variables
from mlxcel.cli.flags import SERVER_FLAGS
from mlxcel.cli.listener import bound, check_tls, is_unix
from mlxcel.cli.loading import make_engine
from mlxcel.cli.parser import Arguments
from mlxcel.cli.process import interruptible, run_process
from mlxcel.cli.progress import shown_progress
from mlxcel.config import ServerConfig
from mlxcel.models.resolve import ResolvedModel, resolve
from mlxcel.models.store import file_sizes
from mlxcel.telemetry.logs import setup_logging

_NOTE = (
    "Flags of llama.cpp's server that are known but not served, and the values at which they are accepted, are "
    "listed in docs/flags.md."
)

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, program: str = "mlxcel-server") -> int:
    """Run the server and return its exit code."""
    command = Command(program, "", "Serve a model over HTTP.", SERVER_FLAGS, _run, note=_NOTE)
    return command.main(sys.argv[1:] if argv is None else argv)


def console() -> NoReturn:
    """The executable `mlxcel-server`."""
    run_process(main)


def _run(arguments: Arguments) -> int:
    config = with_variables(configure(arguments), os.environ)
    secrets = (*config.network.api_keys, config.model.hf_token or "")
    setup_logging(config.log, secrets=secrets)
    check_tls(config.network)
    # Bound before the download, which would be in vain if the address cannot be had.
    with bound(config.network) as listener:
        if is_unix(config.network) and not config.network.host.endswith(".sock"):
            log.warning("--host PATH --port 0 is an old way to name a Unix socket; let the name end in .sock")
        if not listener.is_local and not config.network.api_keys:
            log.warning("%s can be reached from other machines without a key; see --api-key", listener.url)
        if not config.engine.decode_timeout:
            log.warning(
                "--decode-timeout 0: a request without progress still ends after %g s", config.engine.stuck_after
            )
        _check_template(config)
        with interruptible(), shown_progress(sys.stderr, os.environ) as progress:
            model = resolve(config.model, progress)
        log.info("mlxcel %s: %s from %s, %s", __version__, model.name, model.path, _size(model))
        # The web and model frameworks are imported only now that nothing else can go wrong.
        from mlxcel.api.app import create_app
        from mlxcel.cli.serving import serve

        serve(make_engine(config, model), lambda engine: create_app(engine, config), config.network, listener)
    return 0


def _check_template(config: ServerConfig) -> None:
    """A template given by a flag must be one. Raises CommandError."""
    if config.model.chat_template is None:
        return
    from mlxcel.chat.errors import PromptError
    from mlxcel.chat.template import ChatTemplate

    try:
        ChatTemplate(config.model.chat_template, {})
    except PromptError as error:
        raise CommandError(f"--chat-template: {error}") from error


def _size(model: ResolvedModel) -> str:
    size = model.path.stat().st_size if model.path.is_file() else sum(file_sizes(model.path))
    return f"{size / 2**20:.0f} MiB"
