"""From what the user called a model to files on this machine."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlxcel.config import ModelConfig
from mlxcel.models import catalogue
from mlxcel.models.errors import ModelError
from mlxcel.models.fetch import Progress, fetch_model, silent, watch
from mlxcel.models.store import ModelStore, default_root, file_sizes, is_model_id, missing_weights

_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "*.txt")


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model that is on this machine."""

    path: Path
    """A checkpoint directory or a `.gguf` file."""
    name: str
    """The id the API reports."""


Snapshot = Callable[[str, Path, ModelConfig, Mapping[str, str], Progress], None]
"""Downloads `owner/name` from the model hub into a directory. Raises ModelError."""


def resolve(
    config: ModelConfig,
    progress: Progress = silent,
    *,
    environ: Mapping[str, str] = os.environ,
    snapshot: Snapshot | None = None,
) -> ResolvedModel:
    """Find the model that `config` names, downloading it into the store when it is nowhere on this machine.

    In this order: an existing path, a catalogue name, the store, the Hugging Face cache (read only), the hub.
    Raises ModelError with one line that says what is wrong and what to do.
    """
    reference = config.model
    if not reference:
        raise ModelError(f"no model given; try --model {catalogue.DEFAULT_MODEL}")
    path, name = _locate(reference, config, progress, environ, snapshot or hub_snapshot)
    return ResolvedModel(path, config.alias[0] if config.alias else name)


def _locate(
    reference: str, config: ModelConfig, progress: Progress, environ: Mapping[str, str], snapshot: Snapshot
) -> tuple[Path, str]:
    if local := _existing_path(reference):
        return _local_model(local)
    _refuse_foreign_reference(reference)
    if _looks_like_path(reference):
        raise ModelError(f"model path {reference!r} does not exist")
    store = ModelStore(config.store_root or default_root(environ))
    if entry := catalogue.find(reference):
        directory = fetch_model(entry, store, offline=config.offline, progress=progress)
        return directory / entry.entry, entry.name
    if "/" not in reference:
        reference = f"{environ.get('MLXCEL_DEFAULT_ORG') or 'mlx-community'}/{reference}"
    if not is_model_id(reference):
        raise ModelError(f"{reference!r} is neither a path nor a model name of the form owner/name")
    return _hub_model(reference, store, config, progress, environ, snapshot), reference.partition("/")[2]


def _existing_path(reference: str) -> Path | None:
    try:
        path = Path(reference).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:  # not permitted, too long, no such user
        raise ModelError(f"{reference!r} is not a usable path: {error}") from error


def _local_model(path: Path) -> tuple[Path, str]:
    absolute = path.resolve()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path} is a file but not a .gguf file; give a checkpoint directory or a .gguf file")
        if _SPLIT_GGUF.search(path.name):
            raise ModelError(f"{path} is one part of a split GGUF file; join the parts into one file first")
        return absolute, path.stem
    _require_checkpoint(absolute)
    return absolute, absolute.name


def _require_checkpoint(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        found = sorted(path.name for path in directory.glob("*.gguf"))
        hint = f"; name a file in it, such as {directory / found[0]}" if found else ""
        raise ModelError(f"{directory} is not a model directory: it has no config.json{hint}")
    if missing := missing_weights(directory):
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        raise ModelError(f"{directory} is not a complete model: missing {shown}")


def _refuse_foreign_reference(reference: str) -> None:
    if "://" in reference:
        raise ModelError(
            f"{_without_credentials(reference)!r} is a URL, which is not accepted as a model; "
            "give owner/name, a checkpoint directory or a .gguf file"
        )
    stem, colon, quant = reference.rpartition(":")
    if colon and "/" not in quant:
        raise ModelError(
            f"{reference!r} selects a variant with ':{quant}', which is not supported; "
            f"use {stem!r} or the name of a repository that holds the wanted variant"
        )


def _without_credentials(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _looks_like_path(reference: str) -> bool:
    return (
        reference.startswith(("/", "./", "../", "~"))
        or reference.count("/") > 1
        or reference in {".", ".."}
        or reference.lower().endswith(".gguf")
    )


def _hub_model(
    model_id: str,
    store: ModelStore,
    config: ModelConfig,
    progress: Progress,
    environ: Mapping[str, str],
    snapshot: Snapshot,
) -> Path:
    directory = store.path(model_id)
    # The store does not record revisions, so an explicit one is always compared with the hub.
    if config.offline or config.revision is None:
        for candidate in (directory, cached_snapshot(model_id, config.revision, environ)):
            if candidate and _is_checkpoint(candidate):
                return candidate
    if config.offline:
        raise ModelError(
            f"model {model_id!r} is not in the store {store.root} and downloads are off: "
            f"run `mlxcel download {model_id}` once without --offline"
        )
    snapshot(model_id, directory, config, environ, progress)
    _require_checkpoint(directory)
    return directory


def _is_checkpoint(directory: Path) -> bool:
    try:
        _require_checkpoint(directory)
    except ModelError:
        return False
    return True


def cached_snapshot(model_id: str, revision: str | None, environ: Mapping[str, str]) -> Path | None:
    """Where the Hugging Face cache of this user keeps a model, or None. Nothing is written."""
    if cache := environ.get("HF_HUB_CACHE"):
        root = Path(cache).expanduser()
    elif home := environ.get("HF_HOME"):
        root = Path(home).expanduser() / "hub"
    else:
        root = Path.home() / ".cache" / "huggingface" / "hub"
    repository = root / f"models--{model_id.replace('/', '--')}"
    revision = revision or "main"
    if ".." in Path(revision).parts:
        return None
    try:
        commit = (repository / "refs" / revision).read_text().strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    directory = repository / "snapshots" / Path(commit).name
    return directory if commit and directory.is_dir() else None


def hub_snapshot(
    model_id: str, directory: Path, config: ModelConfig, environ: Mapping[str, str], progress: Progress
) -> None:
    """Download a checkpoint from the model hub into `directory`, resuming what is there. Raises ModelError."""
    endpoint = environ.get("HF_ENDPOINT") or None
    token = _token_for(endpoint, config.hf_token, environ)
    # Imported here since most starts do not need it and it takes a while; as Any since it is only partly typed.
    hub: Any = importlib.import_module("huggingface_hub")
    importlib.import_module("huggingface_hub.utils").disable_progress_bars()

    def download(*, dry_run: bool = False, force: bool = False) -> Any:
        return hub.snapshot_download(
            model_id,
            revision=config.revision,
            # Without this the hub client notes revisions in the user's own cache.
            cache_dir=directory.parent.parent / ".hub",
            local_dir=directory,
            allow_patterns=list(_HUB_FILES),
            endpoint=endpoint,
            token=token,
            dry_run=dry_run,
            force_download=force,
        )

    try:
        files = download(dry_run=True)
        names = {str(file.filename) for file in files}
        if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
            raise ModelError(f"model {model_id!r} on the hub has no config.json with .safetensors weights")
        total = sum(int(file.file_size) for file in files)
        with watch(lambda: sum(file_sizes(directory)), model_id, total, progress):
            download()
            if missing_weights(directory):
                download(force=True)
    except ModelError:
        raise
    except Exception as error:  # the client and the HTTP library under it raise dozens of unrelated classes
        raise ModelError(_hub_failure(model_id, error)) from error


def _token_for(endpoint: str | None, token: str | None, environ: Mapping[str, str]) -> str | bool | None:
    """The token to send: None lets the hub client use the one of a login, False sends none."""
    if endpoint is None or urlsplit(endpoint).scheme != "http" or environ.get("MLXCEL_ALLOW_INSECURE_ENDPOINT"):
        return token
    if token:
        raise ModelError(
            f"the hub token is not sent to {_without_credentials(endpoint)}, which is not encrypted; "
            "use https, or set MLXCEL_ALLOW_INSECURE_ENDPOINT=1"
        )
    return False


def _hub_failure(model_id: str, error: Exception) -> str:
    from huggingface_hub import errors

    # A failed listing arrives wrapped.
    match (error.__cause__ if isinstance(error, errors.DryRunError) else None) or error:
        case errors.GatedRepoError():
            return f"model {model_id!r} asks for an agreement on the hub: accept it there and pass --hf-token"
        case errors.RepositoryNotFoundError():
            return f"model {model_id!r} is not on the hub, or is private and needs --hf-token"
        case errors.RevisionNotFoundError():
            return f"model {model_id!r} has no such revision on the hub"
        case OSError(errno=int(), strerror=str(reason)):
            return f"model {model_id!r} could not be stored: {reason}"
        case cause:
            return (
                f"model {model_id!r} is not on this machine and the model hub cannot be reached "
                f"({type(cause).__name__}); try --model {catalogue.DEFAULT_MODEL}, which needs no hub"
            )
