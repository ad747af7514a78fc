"""The door to mlx-lm: every import of that package goes through here.

mlx-lm ships without type information and its `__init__` pulls in transformers, which costs more than a second.
The models and caches need neither, so this module makes the package importable piece by piece, and gives the
pieces types.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import resource
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.nn as nn

from mlxcel.models.errors import ModelError

_MODULE_NAME = re.compile(r"[A-Za-z0-9_-]+")


def prepare() -> None:
    """Let `import mlx_lm.<module>` run that module alone, without the package's `__init__`.

    Call it before any such import; later calls do nothing. Names that only `__init__` defines (`mlx_lm.load`)
    still work: the first use of one runs `__init__` then.
    """
    if "mlx_lm" in sys.modules:
        return
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None or spec.loader is None:
        raise ImportError("the package mlx-lm is not installed")
    loader = spec.loader
    package = importlib.util.module_from_spec(spec)

    def run_init(name: str) -> Any:
        if name.startswith("__") and name != "__version__":
            raise AttributeError(f"module 'mlx_lm' has no attribute {name!r}")
        if package.__dict__.pop("__getattr__", None) is not None:
            loader.exec_module(package)
        return getattr(package, name)

    package.__dict__["__getattr__"] = run_init
    sys.modules["mlx_lm"] = package
    # The package's own __init__ sets this before anything imports transformers.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def model_classes(model_type: str) -> tuple[Callable[[Any], nn.Module], Any]:
    """The classes `Model` and `ModelArgs` of the mlx-lm module named `model_type`.

    Raises ModelError when mlx-lm has no such model.
    """
    module = _model_module(model_type)
    if module is None or not hasattr(module, "Model") or not hasattr(module, "ModelArgs"):
        raise ModelError(f"model type {model_type!r} is not supported")
    return module.Model, module.ModelArgs


def make_prompt_cache(model: nn.Module) -> list[Any]:
    """A fresh cache for one sequence: one entry a layer, of the kind the model asks for."""
    prepare()
    return importlib.import_module("mlx_lm.models.cache").make_prompt_cache(model)


def load_folder(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Read `config.json` and `model*.safetensors` of `folder` into an evaluated model; code in it never runs.

    Returns the model and its configuration. Whatever mlx-lm raises on a checkpoint that it cannot read comes out
    as it is.
    """
    prepare()
    with _file_limit_kept():
        utils = importlib.import_module("mlx_lm.utils")
    return utils.load_model(folder, trust_remote_code=False)


def _model_module(model_type: str) -> ModuleType | None:
    if not _MODULE_NAME.fullmatch(model_type):
        return None
    prepare()
    name = f"mlx_lm.models.{model_type}"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


@contextmanager
def _file_limit_kept() -> Generator[None]:
    """Importing mlx_lm.utils lowers the process's limit of open files for good, which a server cannot afford,
    and fails where the hard limit is lower still. The call is therefore made to do nothing meanwhile."""
    setrlimit = resource.setrlimit

    def ignore(_resource: int, _limits: tuple[int, int], /) -> None:
        return None

    resource.setrlimit = ignore
    try:
        yield
    finally:
        resource.setrlimit = setrlimit
