from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mlxcel.models import sidecar
from mlxcel.models.errors import ModelError


def test_reading(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    assert sidecar.read_json(file) is None
    file.write_text('{"é": 1}', encoding="utf-8")
    assert sidecar.read_json(file) == {"é": 1}
    file.write_text("")
    with pytest.raises(ModelError, match="is not valid JSON"):
        sidecar.read_json(file)
    file.write_bytes(b"\xff")
    with pytest.raises(ModelError, match="is not UTF-8"):
        sidecar.read_json(file)
    with pytest.raises(ModelError, match="cannot be read"):
        sidecar.read_json(tmp_path)


def test_files_out_of_all_proportion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sidecar, "_MAX_BYTES", 3)
    (tmp_path / "a.json").write_text("null")
    with pytest.raises(ModelError, match="is too large"):
        sidecar.read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        (
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "repetition_penalty": 1.1, "max_length": 9},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0, "repetition_penalty": 1.1},
        ),
        ({"do_sample": True, "temperature": 0.7}, {"temperature": 0.7}),
        ({"do_sample": False, "temperature": 0.7, "top_k": 5}, {"temperature": 0.0, "top_k": 5}),
        ({"typical_p": 0.9, "presence_penalty": -0.5, "seed": 5}, {"typical_p": 0.9, "presence_penalty": -0.5}),
        ({"temperature": None, "top_k": "5", "top_p": True, "min_p": [1]}, {}),
        ({"temperature": math.nan, "top_p": math.inf}, {}),
    ],
)
def test_sampling_defaults(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sidecar.sampling_defaults(config) == expected


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "expected"),
    [
        ({"max_position_embeddings": 8192}, {"model_max_length": 5}, 8192),
        ({"text_config": {"max_position_embeddings": 100}}, {}, 100),
        ({"n_positions": 1024}, {}, 1024),
        ({"max_position_embeddings": None}, {"model_max_length": 2048}, 2048),
        ({"max_position_embeddings": True}, {"model_max_length": 10**30}, 4096),
        ({}, {}, 4096),
    ],
)
def test_context_window(config: dict[str, Any], tokenizer_config: dict[str, Any], expected: int) -> None:
    assert sidecar.context_window(config, tokenizer_config) == expected
