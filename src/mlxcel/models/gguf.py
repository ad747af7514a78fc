"""The GGUF container: metadata and a directory of tensors, every length checked before it is used.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian. A damaged or
hostile file gives a ModelError; nothing is allocated on the word of the file beyond the file's own size.
"""

from __future__ import annotations

import enum
import math
import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from mlxcel.models.errors import ModelError

MetadataValue = bool | int | float | str | npt.NDArray[np.generic] | list["MetadataValue"]
"""Arrays of numbers and booleans are numpy arrays, arrays of strings and of arrays are lists."""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_TENSORS = 1 << 20
_MAX_KEYS = 1 << 16
_MAX_NAME_BYTES = (1 << 16) - 1
_MAX_STRING_BYTES = 1 << 24
_MAX_ARRAY_DEPTH = 4
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 16
_READ_BYTES = 1 << 30  # macOS refuses reads of 2 GiB and more


class TensorType(enum.IntEnum):
    """The tensor types that can be read."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q8_0 = 8
    BF16 = 30

    @property
    def block_values(self) -> int:
        """Values in one block, the unit in which a row is stored."""
        return _BLOCKS[self][0]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""
        return _BLOCKS[self][1]


_BLOCKS = {
    TensorType.F32: (1, 4),
    TensorType.F16: (1, 2),
    TensorType.BF16: (1, 2),
    TensorType.Q4_0: (32, 18),
    TensorType.Q4_1: (32, 20),
    TensorType.Q8_0: (32, 34),
}

# Names of the types that exist but cannot be read, for the error message.
_OTHER_TYPES = {
    6: "Q5_0",
    7: "Q5_1",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor directory."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    """Outermost dimension first, as numpy and MLX count (GGUF writes them the other way round)."""
    offset: int
    """From the start of the file, in bytes."""
    nbytes: int


class Metadata:
    """The key-value part of a file, with checked access. Wrong or missing values raise ModelError."""

    def __init__(self, path: Path, values: dict[str, MetadataValue]) -> None:
        self.path = path
        self.values = values

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least zero. Without a default the key must be there."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(key, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number. Without a default the key must be there."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._wrong(key, "a number")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string. Without a default the key must be there."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def strings(self, key: str) -> list[str]:
        """An array of strings, which must be there."""
        value = self.values.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list of strings")
        strings = [item for item in value if isinstance(item, str)]
        if len(strings) != len(value):
            raise self._wrong(key, "a list of strings")
        return strings

    def numbers(self, key: str) -> npt.NDArray[np.generic]:
        """An array of numbers, which must be there."""
        value = self.values.get(key)
        if not isinstance(value, np.ndarray):
            raise self._wrong(key, "a list of numbers")
        return value

    def _wrong(self, key: str, kind: str) -> ModelError:
        if key not in self.values:
            return ModelError(f"{self.path}: the metadata lacks {key!r}")
        return ModelError(f"{self.path}: the metadata value {key!r} is not {kind}")


class GgufFile:
    """An open GGUF file, to be used as a context manager.

    Raises ModelError when the file is missing, is no GGUF file, is damaged, or holds a tensor type that cannot
    be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ModelError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self.metadata, self.tensors = _read_directory(path, self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def read(self, tensor: TensorInfo) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, copied: a file that shrinks meanwhile gives a ModelError, not a crash."""
        data = np.empty(tensor.nbytes, np.uint8)
        view = data.data
        done = 0
        while done < tensor.nbytes:
            try:
                count = os.preadv(self._descriptor, [view[done : done + _READ_BYTES]], tensor.offset + done)
            except OSError as error:
                raise ModelError(f"{self.path}: cannot be read: {error.strerror}") from error
            if count == 0:
                raise ModelError(f"{self.path}: the file ends inside tensor {tensor.name!r}")
            done += count
        return data


def _read_directory(path: Path, descriptor: int) -> tuple[Metadata, dict[str, TensorInfo]]:
    try:
        size = os.fstat(descriptor).st_size
        if size < len(_MAGIC):
            raise ModelError(f"{path}: is not a GGUF file")
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).directory()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


class _Reader:
    """A cursor over the head of the file that never passes its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._position = 0

    def directory(self) -> tuple[Metadata, dict[str, TensorInfo]]:
        if self._take(len(_MAGIC)) != _MAGIC:
            raise self._damaged("is not a GGUF file")
        version = self._u32()
        if version not in _VERSIONS:
            kind = "big-endian GGUF" if version >> 16 and not version & 0xFFFF else f"GGUF version {version}"
            raise self._damaged(f"{kind} is not supported")
        tensor_count = self._count("tensors", _MAX_TENSORS)
        key_count = self._count("metadata keys", _MAX_KEYS)
        metadata = self._metadata(key_count)
        return metadata, self._tensors(tensor_count, metadata)

    def _metadata(self, count: int) -> Metadata:
        values: dict[str, MetadataValue] = {}
        for _ in range(count):
            key = self._string(_MAX_NAME_BYTES)
            if key in values:
                raise self._damaged(f"the metadata key {key!r} appears twice")
            values[key] = self._value(self._u32(), key)
        return Metadata(self._path, values)

    def _value(self, kind: int, key: str, depth: int = 0) -> MetadataValue:
        if kind == _STRING:
            return self._string(_MAX_STRING_BYTES)
        if kind == _ARRAY:
            if depth == _MAX_ARRAY_DEPTH:
                raise self._damaged(f"the arrays of {key!r} are nested too deeply")
            return self._array(key, depth)
        dtype = self._scalar_type(kind, key)
        return np.frombuffer(self._take(dtype.itemsize), dtype)[0].item()

    def _array(self, key: str, depth: int) -> MetadataValue:
        kind = self._u32()
        count = self._u64()
        if kind == _STRING:
            return list(self._strings(count, key))
        if kind == _ARRAY:
            self._check_array(count, 12, key)
            return [self._value(kind, key, depth + 1) for _ in range(count)]
        dtype = self._scalar_type(kind, key)
        self._check_array(count, dtype.itemsize, key)
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _strings(self, count: int, key: str) -> Sequence[str]:
        """Many short strings: the vocabulary and its merges, so the loop is kept tight."""
        self._check_array(count, 8, key)
        data, size, position = self._data, self._size, self._position
        length_of = struct.Struct("<Q").unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + length_of(data, position)[0]
                if position > size:
                    raise self._damaged("the file is cut short in its metadata")
                strings.append(data[start:position].decode())
        except struct.error as error:
            raise self._damaged("the file is cut short in its metadata") from error
        except UnicodeDecodeError as error:
            raise self._damaged(f"{key!r} holds text that is not UTF-8") from error
        self._position = position
        return strings

    def _tensors(self, count: int, metadata: Metadata) -> dict[str, TensorInfo]:
        alignment = metadata.integer("general.alignment", 32)
        if not 8 <= alignment <= _MAX_ALIGNMENT or alignment % 8:
            raise self._damaged(f"the alignment {alignment} is not valid")
        entries = [self._tensor(alignment) for _ in range(count)]
        start = -(-self._position // alignment) * alignment
        space = self._size - start
        # The sum, too: entries that share bytes would let a small file ask for endless memory.
        if sum(entry.nbytes for entry in entries) > space:
            raise self._damaged("the file is shorter than its tensors")
        tensors: dict[str, TensorInfo] = {}
        for entry in entries:
            if entry.offset + entry.nbytes > space:
                raise self._damaged(f"tensor {entry.name!r} lies past the end of the file")
            if entry.name in tensors:
                raise self._damaged(f"tensor {entry.name!r} appears twice")
            tensors[entry.name] = TensorInfo(entry.name, entry.type, entry.shape, start + entry.offset, entry.nbytes)
        return tensors

    def _tensor(self, alignment: int) -> TensorInfo:
        """An entry of the directory; its offset still counts from the start of the data."""
        name = self._string(_MAX_NAME_BYTES)
        dimensions = self._u32()
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed(struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions))))
        kind = self._u32()
        if kind not in _BLOCKS:
            type_name = _OTHER_TYPES.get(kind, f"number {kind}")
            known = ", ".join(member.name for member in TensorType)
            raise self._damaged(f"tensor {name!r} has the type {type_name}; supported are {known}")
        tensor_type = TensorType(kind)
        offset = self._u64()
        if offset % alignment:
            raise self._damaged(f"tensor {name!r} is not aligned")
        if 0 in shape or shape[-1] % tensor_type.block_values:
            raise self._damaged(f"tensor {name!r} of type {tensor_type.name} has the shape {list(shape)}")
        nbytes = math.prod(shape) // tensor_type.block_values * tensor_type.block_bytes
        return TensorInfo(name, tensor_type, shape, offset, nbytes)

    def _scalar_type(self, kind: int, key: str) -> np.dtype[np.generic]:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise self._damaged(f"the metadata value {key!r} has the unknown type {kind}")
        return dtype

    def _check_array(self, count: int, item_bytes: int, key: str) -> None:
        if count * item_bytes > self._size - self._position:
            raise self._damaged(f"the metadata list {key!r} is longer than the file")

    def _count(self, what: str, limit: int) -> int:
        count = self._u64()
        if count > limit:
            raise self._damaged(f"it claims {count} {what}")
        return count

    def _string(self, limit: int) -> str:
        length = self._u64()
        if length > limit:
            raise self._damaged(f"a string in the metadata claims {length} bytes")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise self._damaged("a string in the metadata is not UTF-8") from error

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _take(self, count: int) -> bytes:
        end = self._position + count
        if end > self._size:
            raise self._damaged("the file is cut short in its metadata")
        taken = self._data[self._position : end]
        self._position = end
        return taken

    def _damaged(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: {what}")
