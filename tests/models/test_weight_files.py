from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxcel.models.errors import ModelError
from mlxcel.models.weight_files import as_model_files, check_weight_file, missing_shards, weight_files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    mx.save_safetensors(str(path), {"a": mx.zeros((2, 3)), "b": mx.zeros((4,), mx.bfloat16)}, {"format": "mlx"})
    return path


def test_whole_files_are_counted(file: Path) -> None:
    assert check_weight_file(file) == 2


def test_every_truncation_names_the_file(file: Path) -> None:
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=str(file)):
            check_weight_file(file)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"\xff\xff", "header is damaged"),
        (b"{", "header is damaged"),
        (b"[" * 100_000, "header is damaged"),
        (b"[]", "header is damaged"),
        ({"t": 3}, "damaged at tensor 't'"),
        ({"t": {**ENTRY, "dtype": "F7"}}, "damaged at tensor 't'"),
        ({"t": {**ENTRY, "shape": [-2]}}, "damaged at tensor 't'"),
        ({"t": {**ENTRY, "shape": ["2"]}}, "damaged at tensor 't'"),
        ({"t": {**ENTRY, "data_offsets": [0]}}, "damaged at tensor 't'"),
        ({"t": {**ENTRY, "data_offsets": [8, 16]}}, "'t' ends past the end"),
        ({"t": {**ENTRY, "data_offsets": [-8, 0]}}, "size of tensor 't'"),
        ({"t": {**ENTRY, "shape": [3]}}, "size of tensor 't'"),
    ],
)
def test_damaged_headers(tmp_path: Path, header: Any, reason: str) -> None:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(8))
    with pytest.raises(ModelError, match=reason):
        check_weight_file(tmp_path / "x.safetensors")


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        check_weight_file(tmp_path)


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "consolidated.safetensors"], ["model.safetensors"]),
        (
            ["model-2-of-2.safetensors", "model-1-of-2.safetensors"],
            ["model-1-of-2.safetensors", "model-2-of-2.safetensors"],
        ),
        (["weights.safetensors", "adapters.safetensors"], ["weights.safetensors"]),
    ],
)
def test_which_files_are_weights(tmp_path: Path, names: list[str], chosen: list[str]) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert [path.name for path in weight_files(tmp_path)] == chosen


def test_no_weights(tmp_path: Path) -> None:
    (tmp_path / "adapters.safetensors").touch()
    with pytest.raises(ModelError, match=r"has no \.safetensors weights"):
        weight_files(tmp_path)


def test_files_under_other_names_are_lent_the_expected_ones(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    other = tmp_path / "weights.safetensors"
    other.write_bytes(b"weights")
    with as_model_files(tmp_path, [other]) as folder:
        assert folder != tmp_path
        assert [path.read_bytes() for path in folder.glob("model*.safetensors")] == [b"weights"]
        assert (folder / "config.json").read_text() == "{}"
    assert not folder.exists()
    assert other.read_bytes() == b"weights"
    usual = tmp_path / "model.safetensors"
    with as_model_files(tmp_path, [usual]) as folder:
        assert folder == tmp_path


def test_missing_shards(tmp_path: Path) -> None:
    assert missing_shards(tmp_path) == []
    (tmp_path / "here.safetensors").touch()
    index = {"weight_map": {"a": "here.safetensors", "b": "gone.safetensors", "c": "gone.safetensors", "d": 3}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert missing_shards(tmp_path) == ["gone.safetensors"]
