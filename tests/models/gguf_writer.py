"""Writes GGUF files for tests, and reads the values of quantised blocks one by one, as their definition says."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TYPE_NUMBERS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "BF16": 30}


@dataclass(frozen=True)
class Tensor:
    name: str
    kind: str
    shape: tuple[int, ...]
    data: bytes


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def typed(value: Any) -> tuple[int, bytes]:
    """GGUF type number and encoding; numpy scalars and arrays keep their own type."""
    scalar_types = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}
    if isinstance(value, np.generic):
        return scalar_types[value.dtype.str[1:]], value.tobytes()
    if isinstance(value, bool):
        return 7, struct.pack("<B", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str | bytes):
        return 8, string(value)
    if isinstance(value, np.ndarray):
        kind = 7 if value.dtype == bool else scalar_types[value.dtype.str[1:]]
        return 9, struct.pack("<IQ", kind, value.size) + value.tobytes()
    items = [typed(item) for item in value]
    return 9, struct.pack("<IQ", items[0][0] if items else 8, len(items)) + b"".join(raw for _, raw in items)


def entry(tensor: Tensor, offset: int) -> bytes:
    return (
        string(tensor.name)
        + struct.pack("<I", len(tensor.shape))
        + struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        + struct.pack("<IQ", TYPE_NUMBERS[tensor.kind], offset)
    )


def pair(key: str | bytes, value: Any) -> bytes:
    kind, raw = typed(value)
    return string(key) + struct.pack("<I", kind) + raw


def head(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def gguf(metadata: Mapping[str, Any], tensors: Sequence[Tensor], *, version: int = 3, alignment: int = 32) -> bytes:
    """A whole file."""
    if alignment != 32:
        metadata = {**metadata, "general.alignment": alignment}
    directory, blobs, offset = b"", b"", 0
    for tensor in tensors:
        directory += entry(tensor, offset)
        padded = tensor.data + b"\0" * (-len(tensor.data) % alignment)
        blobs += padded
        offset += len(padded)
    front = head(len(tensors), len(metadata), version)
    front += b"".join(pair(key, value) for key, value in metadata.items()) + directory
    return front + b"\0" * (-len(front) % alignment) + blobs


def encode(name: str, kind: str, values: np.ndarray) -> Tensor:
    """A tensor of `values`; the quantised types round them to a scale of their own for each block."""
    values = np.asarray(values, np.float32)
    match kind:
        case "F32":
            data = values.tobytes()
        case "F16":
            data = values.astype(np.float16).tobytes()
        case "BF16":
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        case _:
            data = b"".join(_encode_block(kind, block) for block in values.reshape(-1, 32))
    return Tensor(name, kind, values.shape, data)


def _encode_block(kind: str, block: np.ndarray) -> bytes:
    if kind == "Q8_0":
        d = np.float16(max(np.abs(block).max() / 127, 1e-4))
        return d.tobytes() + np.clip(np.rint(block / np.float32(d)), -128, 127).astype(np.int8).tobytes()
    if kind == "Q4_0":
        d = np.float16(max(np.abs(block).max() / 7, 1e-4))
        q = np.clip(np.rint(block / np.float32(d)) + 8, 0, 15).astype(np.uint8)
        return d.tobytes() + (q[:16] | q[16:] << 4).tobytes()
    d, m = np.float16(max((block.max() - block.min()) / 15, 1e-4)), np.float16(block.min())
    q = np.clip(np.rint((block - np.float32(m)) / np.float32(d)), 0, 15).astype(np.uint8)
    return d.tobytes() + m.tobytes() + (q[:16] | q[16:] << 4).tobytes()


def decode(tensor: Tensor) -> np.ndarray:
    """The float32 values that a tensor stands for."""
    match tensor.kind:
        case "F32":
            values = np.frombuffer(tensor.data, np.float32)
        case "F16":
            values = np.frombuffer(tensor.data, np.float16).astype(np.float32)
        case "BF16":
            values = (np.frombuffer(tensor.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        case _:
            size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[tensor.kind]
            starts = range(0, len(tensor.data), size)
            values = np.concatenate([_decode_block(tensor.kind, tensor.data[at : at + size]) for at in starts])
    return values.reshape(tensor.shape)


def _decode_block(kind: str, block: bytes) -> np.ndarray:
    d = np.frombuffer(block[:2], np.float16)[0].astype(np.float32)
    if kind == "Q8_0":
        return np.array([d * np.float32(q) for q in struct.unpack("32b", block[2:])], np.float32)
    packed = block[-16:]
    nibbles = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
    if kind == "Q4_0":
        return np.array([d * np.float32(q - 8) for q in nibbles], np.float32)
    m = np.frombuffer(block[2:4], np.float16)[0].astype(np.float32)
    return np.array([d * np.float32(q) + m for q in nibbles], np.float32)
