from __future__ import annotations

import subprocess
import sys

import mlx.core as mx
import pytest

from mlxcel.models import mlxlm
from mlxcel.models.errors import ModelError
from tests.models import tiny


def run(code: str) -> str:
    """What a fresh interpreter prints: imports of this one have happened already."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_a_model_comes_without_transformers() -> None:
    code = """
import sys
from mlxcel.models import load, mlxlm
mlxlm.model_classes("llama")
print("transformers" in sys.modules)
"""
    assert run(code) == "False"


def test_the_package_is_whole_when_wanted() -> None:
    code = """
from mlxcel.models import mlxlm
mlxlm.prepare()
mlxlm.prepare()
import mlx_lm
from mlx_lm import stream_generate
import mlx_lm.utils
print(mlx_lm.__version__ != "", callable(mlx_lm.load), hasattr(mlx_lm, "nonsense"), hasattr(mlx_lm, "__wrapped__"))
"""
    assert run(code) == "True True False False"


def test_the_limit_of_open_files_is_kept() -> None:
    code = """
import resource
from pathlib import Path
from mlxcel.models import mlxlm
before, function = resource.getrlimit(resource.RLIMIT_NOFILE), resource.setrlimit
try:
    mlxlm.load_folder(Path("/nonexistent"))
except OSError:
    print(resource.getrlimit(resource.RLIMIT_NOFILE) == before, resource.setrlimit is function)
"""
    assert run(code) == "True True"


@pytest.mark.parametrize("model_type", ["nonsense", "cache", "../llama", "os.path", "", "llama.Model"])
def test_unknown_model_types(model_type: str) -> None:
    with pytest.raises(ModelError, match="is not supported"):
        mlxlm.model_classes(model_type)


def test_a_cache_for_each_layer() -> None:
    model_class, args_class = mlxlm.model_classes("llama")
    model = model_class(args_class.from_dict({**tiny.CONFIG, "vocab_size": 8}))
    cache = mlxlm.make_prompt_cache(model)
    assert len(cache) == 2
    model(mx.array([[1, 2, 3]]), cache=cache)
    assert cache[0].offset == 3
