from __future__ import annotations

import json
from pathlib import Path

import pytest

from mlxcel.models.errors import ModelError
from mlxcel.models.store import INDEX, ModelStore, default_root, is_model_id, missing_weights


def put(root: Path, model_id: str, **files: str) -> Path:
    directory = root / model_id
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(content)
    return directory


def test_the_root_follows_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert default_root({}) == Path("/home/someone/.cache/mlxcel/models")
    assert default_root({"MLXCEL_CACHE_DIR": "/c"}) == Path("/c/models")
    assert default_root({"MLXCEL_CACHE_DIR": "/c", "MLXCEL_MODELS_DIR": "/m"}) == Path("/m")


@pytest.mark.parametrize("name", ["a/b", "mlx-community/Qwen3-0.6B-4bit", "_x/y_", "a/b.c"])
def test_model_names(name: str) -> None:
    assert is_model_id(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a",
        "a/",
        "/a",
        "../a",
        "a/..",
        "a/.",
        ".a/b",
        "a/.b",
        "a/b/c",
        "a/b c",
        "a/b\n",
        "~/b",
        "a\\b/c",
        "a/" + "b" * 97,
    ],
)
def test_names_that_are_none(name: str, tmp_path: Path) -> None:
    assert not is_model_id(name)
    with pytest.raises(ModelError, match="owner/name"):
        ModelStore(tmp_path).remove(name)


def test_a_store_lists_models_and_nothing_else(tmp_path: Path) -> None:
    put(tmp_path, "b/two", weights="12345", config="1")
    put(tmp_path, "a/one", weights="123")
    put(tmp_path, ".downloads/a", part="x")
    put(tmp_path, "a/.hidden", part="x")
    (tmp_path / "file").write_text("")
    models = list(ModelStore(tmp_path))
    assert [(model.repo_id, model.size_bytes) for model in models] == [("a/one", 3), ("b/two", 6)]
    assert models[0].path == tmp_path / "a" / "one"
    assert models[0].modified == (tmp_path / "a" / "one" / "weights").stat().st_mtime


def test_a_store_that_does_not_exist_is_empty(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "none")
    assert list(store) == []
    assert store.find("a/b") is None


def test_remove_deletes_the_model_and_its_empty_owner(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    put(tmp_path, "a/one", weights="123")
    put(tmp_path, "a/two", weights="123")
    assert store.remove("a/one").size_bytes == 3
    assert (tmp_path / "a").is_dir()
    store.remove("a/two")
    assert not (tmp_path / "a").exists()
    with pytest.raises(ModelError, match="not in the model store"):
        store.remove("a/two")


def test_remove_takes_a_catalogue_model_by_its_short_name(tmp_path: Path) -> None:
    put(tmp_path, "mlxcel/smollm2-135m", weights="1")
    assert ModelStore(tmp_path).remove("smollm2-135m").repo_id == "mlxcel/smollm2-135m"


def test_remove_never_follows_links(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside", "o/model", weights="precious")
    root = tmp_path / "store"
    (root / "a").mkdir(parents=True)
    (root / "a" / "linked").symlink_to(outside)
    (root / "linked").symlink_to(outside.parent)
    store = ModelStore(root)
    with pytest.raises(ModelError, match="leads out of the store"):
        store.remove("linked/model")
    store.remove("a/linked")
    assert not (root / "a").exists()
    inner = put(root, "b/model", config="1")
    (inner / "link").symlink_to(outside)
    store.remove("b/model")
    assert (outside / "weights").read_text() == "precious"


@pytest.mark.parametrize(
    ("files", "indexed", "missing"),
    [
        (["model.safetensors"], None, []),
        ([], None, ["*.safetensors"]),
        (["a.safetensors", "b.safetensors"], ["a.safetensors", "b.safetensors"], []),
        (["a.safetensors"], ["a.safetensors", "b.safetensors"], ["b.safetensors"]),
        (["-model.safetensors"], None, ["*.safetensors"]),
        (["a.safetensors", "-b.safetensors"], ["a.safetensors", "b.safetensors"], ["b.safetensors"]),
        # An index left over from the unquantized model.
        (["model.safetensors"], ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"], []),
        (
            ["n-00001-of-00001.safetensors"],
            ["m-00001-of-00002.safetensors", "m-00002-of-00002.safetensors"],
            [],
        ),
        (
            ["m-00001-of-00003.safetensors"],
            ["m-00001-of-00002.safetensors"],
            ["m-00001-of-00002.safetensors"],
        ),
        (["m-00002-of-00002.safetensors"], None, ["m-00001-of-00002.safetensors"]),
    ],
)
def test_weights_are_complete(files: list[str], indexed: list[str] | None, missing: list[str], tmp_path: Path) -> None:
    """A name with `-` in front stands for an empty file."""
    for name in files:
        (tmp_path / name.removeprefix("-")).write_text("" if name.startswith("-") else "x")
    if indexed is not None:
        weights = {f"layer.{i}": name for i, name in enumerate(indexed)}
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": weights}))
    assert missing_weights(tmp_path) == missing


@pytest.mark.parametrize(
    "index",
    [
        "",
        "[]",
        "{}",
        '{"weight_map": 1}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": [1]}}',
        '{"weight_map": {"a": "../b.safetensors"}}',
        '{"weight_map": {"a": "/b.safetensors"}}',
        '{"weight_map": {}}',
        "[" * 100_000,
    ],
)
def test_a_bad_index_is_one_clear_error(index: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("x")
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(ModelError, match="index"):
        missing_weights(tmp_path)
