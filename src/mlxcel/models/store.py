"""The model store: a directory tree `<owner>/<name>` that this program fills, lists and empties.

Entries whose names begin with a dot are working files and never models.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxcel.models.catalogue import find
from mlxcel.models.errors import ModelError

INDEX = "model.safetensors.index.json"

_ID_PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One model in the store."""

    repo_id: str
    size_bytes: int
    path: Path
    modified: float
    """Seconds since the epoch of the newest file."""


def default_root(environ: Mapping[str, str]) -> Path:
    """Where models are kept when no flag says so."""
    try:
        if models := environ.get("MLXCEL_MODELS_DIR"):
            return Path(models).expanduser()
        if cache := environ.get("MLXCEL_CACHE_DIR"):
            return Path(cache).expanduser() / "models"
        return Path.home() / ".cache" / "mlxcel" / "models"
    except RuntimeError as error:  # no such user, no home
        raise ModelError(f"the model store cannot be found: {error}") from error


def is_model_id(text: str) -> bool:
    """True for `owner/name` made of letters, digits, `_`, `-` and inner dots."""
    owner, slash, name = text.partition("/")
    return bool(slash and _ID_PART.fullmatch(owner) and _ID_PART.fullmatch(name))


class ModelStore:
    """The models under one root directory. The root need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, model_id: str) -> Path:
        """Directory of the model `owner/name`, present or not.

        Raises ModelError for a name that is not of that form.
        """
        if not is_model_id(model_id):
            raise ModelError(f"{model_id!r} is not a model name: expected owner/name")
        owner, name = model_id.split("/")
        return self.root / owner / name

    def __iter__(self) -> Iterator[StoredModel]:
        """Every model of the store, in order of name."""
        for owner in _visible_directories(self.root):
            for directory in _visible_directories(owner):
                model_id = f"{owner.name}/{directory.name}"
                if is_model_id(model_id):
                    yield _describe(model_id, directory)

    def find(self, reference: str) -> StoredModel | None:
        """The stored model called `reference` (`owner/name` or a catalogue name), or None."""
        entry = find(reference)
        directory = self.path(entry.store_id if entry else reference)
        return _describe(f"{directory.parent.name}/{directory.name}", directory) if directory.is_dir() else None

    def remove(self, reference: str) -> StoredModel:
        """Delete a model and return what it was.

        A model that is a symbolic link loses the link, not its target. Raises ModelError when there is no such
        model, when its name is not a model name, or when its owner directory leads out of the store.
        """
        model = self.find(reference)
        if model is None:
            raise ModelError(f"{reference!r} is not in the model store {self.root}")
        owner = model.path.parent
        if owner.is_symlink():
            raise ModelError(f"{reference!r} is not removed: {owner} is a link that leads out of the store")
        try:
            if model.path.is_symlink():
                model.path.unlink()
            else:
                shutil.rmtree(model.path)
            if not any(owner.iterdir()):
                owner.rmdir()
        except OSError as error:
            raise ModelError(f"{reference!r} is not fully removed: {error}") from error
        return model


def missing_weights(directory: Path) -> list[str]:
    """Weight files that a checkpoint directory lacks; empty when it can be loaded.

    The shards named by the index must all be there with content. An index that names absent shards is passed over
    when the other weight files of the directory form a complete set by themselves.
    """
    present = {path.name for path in directory.glob("*.safetensors") if path.is_file() and path.stat().st_size}
    indexed = _indexed_shards(directory / INDEX)
    if indexed is not None:
        missing = sorted(indexed - present)
        return missing if missing and not _is_whole(present - indexed) else []
    if not present:
        return ["*.safetensors"]
    return [] if _is_whole(present) else sorted(_absent_siblings(present))


def _indexed_shards(index: Path) -> set[str] | None:
    """Shards an index names; None without an index. Raises ModelError when it cannot be read."""
    if not index.is_file():
        return None
    try:
        content: Any = json.loads(index.read_bytes())
        names: set[Any] = set(content["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is not a weight index") from error
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ModelError(f"{index} names weight files outside its directory, or none")
    return names


def _is_whole(names: set[str]) -> bool:
    return bool(names) and not _absent_siblings(names)


def _absent_siblings(names: set[str]) -> set[str]:
    """Files that the numbering of `names` (`x-00001-of-00003`) promises and `names` lacks."""
    promised: set[str] = set()
    for shard in filter(None, map(_SHARD.fullmatch, names)):
        total = int(shard["total"])
        promised |= {f"{shard['stem']}-{i:05}-of-{total:05}.safetensors" for i in range(1, total + 1)}
    return promised - names


def _visible_directories(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []


def file_sizes(directory: Path) -> Iterator[int]:
    """Bytes of every file under `directory`, also while others write there."""
    return (status.st_size for status in _file_statuses(directory))


def _file_statuses(directory: Path) -> Iterator[os.stat_result]:
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                yield os.stat(os.path.join(folder, name))


def _describe(model_id: str, directory: Path) -> StoredModel:
    statuses = list(_file_statuses(directory))
    modified = max((status.st_mtime for status in statuses), default=directory.stat().st_mtime)
    return StoredModel(model_id, sum(status.st_size for status in statuses), directory, modified)
