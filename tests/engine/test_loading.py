"""Which backend a checkpoint gets."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from mlxcel.config import EngineConfig, ModelConfig, SamplingDefaults, ServerConfig
from mlxcel.engine import loading
from mlxcel.engine.cache.sizing import NEW_SEQUENCE
from mlxcel.engine.loading import load_backend
from mlxcel.engine.native_backend import NativeBackend
from mlxcel.engine.runner import MlxBackend
from mlxcel.kernels import native
from mlxcel.models.device import select_device
from mlxcel.models.errors import ModelError
from tests.models import tiny

CPU = ServerConfig(model=ModelConfig(device="cpu", threads=2), engine=EngineConfig(ctx_size=1024, parallel=2))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny.write_gguf(tmp_path / "tiny.gguf", kind="Q4_1")


def test_a_cpu_runs_the_native_decoder(checkpoint: Path) -> None:
    backend = load_backend(checkpoint, "tiny", CPU)
    assert isinstance(backend, NativeBackend)
    assert backend.info.kernels.endswith("2 threads, default precision")
    assert (backend.info.name, backend.info.device, backend.info.can_batch) == ("tiny", "cpu", True)
    assert backend.info.weight_bytes > 0


def test_a_server_wide_bias_on_a_token_the_model_lacks_stops_the_start(checkpoint: Path) -> None:
    known = dataclasses.replace(CPU, sampling=SamplingDefaults(logit_bias=((1, -1.0),)))
    load_backend(checkpoint, "tiny", known)
    unknown = dataclasses.replace(CPU, sampling=SamplingDefaults(logit_bias=((1, 1.0), (10**9, 1.0))))
    with pytest.raises(ModelError, match="--logit-bias names the token id 1000000000"):
        load_backend(checkpoint, "tiny", unknown)


@pytest.mark.parametrize("kernels", ["", "mlx"])
@pytest.mark.parametrize(("size", "most"), [(None, None), (300, 256), (4096, None)])
def test_a_limit_on_kept_tokens_reaches_the_backend_and_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, size: int | None, most: int | None
) -> None:
    """One that the model's window keeps anyway is none."""
    monkeypatch.setenv("MLXCEL_KERNELS", kernels)
    checkpoint = tiny.write_gguf(tmp_path / "long.gguf", {**tiny.CONFIG, "max_position_embeddings": 2048})
    engine = dataclasses.replace(CPU.engine, max_kv_size=size)
    off = dataclasses.replace(CPU.cache, cache_prompt=False)
    backend = load_backend(checkpoint, "tiny", dataclasses.replace(CPU, engine=engine, cache=off))
    assert (backend.info.retention and backend.info.retention.most) == most
    assert backend.kv.memory.budget == 2 * backend.kv.growth(NEW_SEQUENCE, most or 512)
    assert (backend.info.kv_limit is None) == (most is not None)


def test_mlx_runs_it_on_request(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLXCEL_KERNELS", "mlx")
    backend = load_backend(checkpoint, "tiny", CPU)
    assert isinstance(backend, MlxBackend)
    assert "stock MLX" in backend.info.kernels
    assert "--threads and --cpu-precision have no effect" in caplog.text


def test_without_the_extension_mlx_runs_it_and_says_what_that_costs(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing() -> str:
        raise native.NativeUnavailable("no native kernels: no C++ compiler was found")

    monkeypatch.setattr(native, "module", missing)
    monkeypatch.setattr(native, "operations_module", missing)
    with caplog.at_level(logging.WARNING):
        assert isinstance(load_backend(checkpoint, "tiny", CPU), MlxBackend)
    (line,) = [record.message for record in caplog.records if "native kernels" in record.message]
    assert line.startswith("no native kernels: no C++ compiler was found: ")
    assert "slower" in line


def test_an_architecture_the_decoder_does_not_know_runs_in_mlx_graphs(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "biased", {**tiny.CONFIG, "head_dim": 24})
    backend = load_backend(folder, "odd", CPU)
    assert isinstance(backend, MlxBackend)
    assert backend.info.kernels.endswith("in MLX graphs, 2 threads, default precision")


def test_a_model_that_the_kernels_cannot_run_is_loaded_again_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny.write_folder(tmp_path / "odd", {**tiny.CONFIG, "head_dim": 24})

    def raises(*arguments: object) -> None:
        raise AttributeError("property 'weight' has no deleter")

    monkeypatch.setattr(loading, "paged_kv", raises)
    backend = load_backend(folder, "odd", CPU)
    assert isinstance(backend, MlxBackend)
    assert "stock MLX" in backend.info.kernels
    assert "the native kernels cannot run this model" in caplog.text


def test_kernels_that_are_not_there_are_named(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise ValueError("kernels 'avx9000': there are no kernels of that name")

    monkeypatch.setattr(native, "instruction_set", unknown)
    with pytest.raises(ModelError, match=r"MLXCEL_KERNELS: kernels 'avx9000'"):
        load_backend(checkpoint, "tiny", CPU)


def test_both_say_the_same(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(5, 45))
    answers = []
    for kernels in ("", "mlx"):
        monkeypatch.setenv("MLXCEL_KERNELS", kernels)
        backend = load_backend(checkpoint, "tiny", CPU)
        backend.prefill(1, prompt[:-1])
        backend.join(1)
        said = prompt[-1:]
        for _ in range(12):
            said.append(int(backend.decode(said[-1:])[0].argmax()))
        answers.append(said)
    assert answers[0] == answers[1]
    select_device("auto")
