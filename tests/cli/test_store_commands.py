"""`mlxcel list`, `rm`, `download` and `arch`."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from mlxcel.cli.main import main


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "store"
    for model_id, size in (("b/small", 10), ("a/large", 3 << 20)):
        directory = root / model_id
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(b"x" * (size - 2))
        for file in directory.iterdir():
            os.utime(file, (0, 86400))
    monkeypatch.setenv("MLXCEL_MODELS_DIR", str(root))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return root


def test_list_as_json(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "repo_id": "a/large",
            "size_bytes": 3 << 20,
            "path": str(store / "a" / "large"),
            "modified": "1970-01-02T00:00:00Z",
        },
        {
            "repo_id": "b/small",
            "size_bytes": 10,
            "path": str(store / "b" / "small"),
            "modified": "1970-01-02T00:00:00Z",
        },
    ]


def test_list_for_people(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("a/large")
    assert "3.0 MiB" in first
    assert second.startswith("b/small")
    assert str(store) not in first
    assert main(["list", "-v"]) == 0
    assert str(store / "a" / "large") in capsys.readouterr().out


def test_list_of_names_in_order(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "b" / "small" / "more").write_bytes(b"x" * (4 << 20))
    assert main(["list", "-q"]) == 0
    assert capsys.readouterr().out == "a/large\nb/small\n"
    assert main(["list", "-q", "--sort", "size"]) == 0
    assert capsys.readouterr().out == "b/small\na/large\n"


def test_list_of_an_empty_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--models-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no models in {tmp_path}\n"
    assert main(["list", "--json", "--models-dir", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_rm_deletes_what_it_is_told_to(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rm", "a/large", "--yes"]) == 0
    assert capsys.readouterr().out == "deleted a/large, 3.0 MiB\n"
    assert not (store / "a").exists()
    assert (store / "b" / "small").exists()


@pytest.mark.parametrize(
    ("answer", "gone"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("", False)]
)
def test_rm_asks_first(answer: str, gone: bool, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert main(["rm", "b/small"]) == (0 if gone else 1)
    assert (store / "b" / "small").exists() is not gone


@pytest.mark.parametrize(
    ("argv", "words", "code"),
    [
        (["b/small"], "pass --yes", 1),
        (["../hf", "--yes"], "not a model name", 1),
        (["..", "--yes"], "not a model name", 1),
        (["no/such", "--yes"], "is not in the model store", 1),
        ([], "name the model to delete", 2),
        (["a/large", "b/small"], "unexpected argument 'b/small'", 2),
    ],
)
def test_rm_refuses(
    argv: list[str],
    words: str,
    code: int,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["rm", *argv]) == code
    assert words in capsys.readouterr().err
    assert (store / "b" / "small").exists()


def test_rm_reports_a_copy_in_the_hugging_face_cache(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "hf" / "hub" / "models--o--m" / "snapshots" / "main"
    copy.mkdir(parents=True)
    assert main(["rm", "o/m", "--yes"]) == 1
    assert f"is not touched: {copy}" in capsys.readouterr().err
    assert copy.exists()


def test_download_prints_where_the_model_is(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["download", "a/large"]) == 0
    assert capsys.readouterr().out == f"{store / 'a' / 'large'}\n"
    assert main(["download", "no/such", "--offline"]) == 1
    assert "downloads are off" in capsys.readouterr().err
    assert main(["download"]) == 2
    assert "name the model to download" in capsys.readouterr().err


def test_arch_shows_what_the_loader_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arch", "--json"]) == 0
    names = json.loads(capsys.readouterr().out)
    assert {"llama", "qwen3", "gemma3_text"} <= set(names)
    assert not {"base", "cache", "rope_utils"} & set(names)
    assert main(["arch"]) == 0
    assert capsys.readouterr().out.splitlines() == names
