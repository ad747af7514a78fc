"""Fixtures that tests of several rooms share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from mlxcel.config import ModelConfig
from mlxcel.models.catalogue import DEFAULT_MODEL
from mlxcel.models.resolve import resolve

settings.register_profile("mlxcel", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("mlxcel")


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file in the model store; fetched once on a machine that has never had it."""
    return resolve(ModelConfig(model=DEFAULT_MODEL), progress=print).path
