"""The `.safetensors` files of a checkpoint folder: which they are, and whether they are whole.

Format: https://github.com/huggingface/safetensors (length of the header, header in JSON, data). MLX trusts the
header, so a file is checked before MLX sees it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from mlxcel.models.errors import ModelError
from mlxcel.models.sidecar import as_mapping, read_json

_MAX_HEADER_BYTES = 100_000_000
_ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint: `model*.safetensors`, else every other one that is no adapter.

    Raises ModelError when there is none.
    """
    found = sorted(folder.glob("*.safetensors"))
    files = [path for path in found if path.name.startswith("model")]
    files = files or [path for path in found if not path.name.startswith("adapter")]
    if not files:
        raise ModelError(f"{folder}: has no .safetensors weights")
    return files


def missing_shards(folder: Path) -> list[str]:
    """Names of the files that the folder's weight index lists and that are not there."""
    index = as_mapping(read_json(folder / "model.safetensors.index.json"))
    names = {name for name in as_mapping(index.get("weight_map")).values() if isinstance(name, str)}
    return sorted(name for name in names if not (folder / name).is_file())


def check_weight_file(path: Path) -> int:
    """Compare the header of a file with its size and return how many tensors it holds.

    Raises ModelError that names the file when it is cut short or damaged.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
                raise ModelError(f"{path}: is cut short or not a safetensors file")
            header = json.loads(file.read(length))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: its safetensors header is damaged") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path}: its safetensors header is damaged")
    entries = dict(cast(dict[str, Any], header))
    entries.pop("__metadata__", None)
    for name, entry in entries.items():
        _check_entry(path, name, as_mapping(entry), size - 8 - length)
    return len(entries)


def _check_entry(path: Path, name: str, entry: Mapping[str, Any], space: int) -> None:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(end)]} if (
            dtype in _ITEM_BYTES and all(isinstance(length, int) and length >= 0 for length in shape)
        ):
            if end > space:
                raise ModelError(f"{path}: is cut short: tensor {name!r} ends past the end of the file")
            if start < 0 or end - start != math.prod(cast(list[int], shape)) * _ITEM_BYTES[dtype]:
                raise ModelError(f"{path}: the size of tensor {name!r} does not fit its shape")
        case _:
            raise ModelError(f"{path}: its safetensors header is damaged at tensor {name!r}")


@contextmanager
def as_model_files(folder: Path, files: list[Path]) -> Generator[Path]:
    """A folder in which `files` are the ones called `model*.safetensors`, the names that mlx-lm looks for.

    That is `folder` itself where they have such names, else a temporary one of links.
    """
    if all(path.name.startswith("model") for path in files):
        yield folder
        return
    links = Path(tempfile.mkdtemp(prefix="mlxcel-"))
    try:
        for path in folder.glob("*.json"):
            (links / path.name).symlink_to(path.resolve())
        for number, path in enumerate(files):
            (links / f"model-{number}.safetensors").symlink_to(path.resolve())
        yield links
    finally:
        shutil.rmtree(links, ignore_errors=True)
