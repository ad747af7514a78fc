"""The engine of a process, and waiting for its model."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from mlxcel.cli.command import CommandError
from mlxcel.config import ServerConfig
from mlxcel.models.errors import ModelError
from mlxcel.models.resolve import ResolvedModel

if TYPE_CHECKING:
    from mlxcel.engine.backend import ModelInfo
    from mlxcel.engine.engine import Engine

log = logging.getLogger(__name__)


def make_engine(config: ServerConfig, model: ResolvedModel) -> Engine:
    """An engine that will load `model` once it is started. Imports the model framework."""
    from mlxcel.engine.engine import Engine
    from mlxcel.engine.loading import load_backend

    return Engine(config.engine, functools.partial(load_backend, model.path, model.name, config), config.cache)


async def wait_loaded(engine: Engine) -> ModelInfo:
    """Wait for the model. Raises ModelError or CommandError, with one clear line, when there will be none."""
    from mlxcel.engine.errors import BadConfig

    try:
        return await engine.wait_ready()
    except ModelError:
        raise
    except BadConfig as error:
        raise CommandError(str(error)) from error
    except Exception as error:  # whatever the framework raised, the user gets a line and not a trace
        log.debug("loading failed", exc_info=True)
        raise CommandError(f"the model cannot be loaded: {type(error).__name__}: {error}") from error
