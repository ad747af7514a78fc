from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from mlxcel.models.errors import ModelError
from mlxcel.models.gguf import GgufFile, TensorType
from tests.models.gguf_writer import Tensor, encode, entry, gguf, head, pair, string

VALUES = np.arange(8, dtype=np.float32).reshape(2, 4)
ONE = encode("t", "F32", VALUES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def message(path: Path, data: bytes) -> str:
    """What opening `data` says; always one line that names the file."""
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        GgufFile(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text


def test_metadata_of_every_type(path: Path) -> None:
    scalars = {
        f"scalar.{dtype}": np.dtype(dtype).type(value)
        for dtype, value in {
            "u1": 200,
            "i1": -3,
            "u2": 60000,
            "i2": -300,
            "u4": 1 << 31,
            "i4": -(1 << 30),
            "f4": 0.5,
            "u8": 1 << 63,
            "i8": -(1 << 62),
            "f8": 0.1,
        }.items()
    }
    arrays = {f"array.{key}": np.array([value, value]) for key, value in scalars.items()}
    others = {"flag": True, "text": "naïve 日本", "empty": "", "strings": ["a", "", "é"], "nested": [[1, 2], [3]]}
    path.write_bytes(gguf({**scalars, **arrays, "array.flags": np.array([True, False]), **others}, []))
    with GgufFile(path) as file:
        values = file.metadata.values
    for key, value in scalars.items():
        assert values[key] == value.item()
        assert type(values[key]) is type(value.item())
    for key, value in {**arrays, "array.flags": np.array([True, False])}.items():
        np.testing.assert_array_equal(values[key], value)
        assert values[key].dtype == value.dtype
    assert (values["flag"], values["text"], values["empty"], values["strings"]) == (
        True,
        "naïve 日本",
        "",
        ["a", "", "é"],
    )
    assert [list(row) for row in values["nested"]] == [[1, 2], [3]]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64])
def test_tensors_are_found_and_read(path: Path, version: int, alignment: int) -> None:
    second = encode("quantised", "Q8_0", np.ones((2, 64)))
    path.write_bytes(gguf({"a": 1}, [ONE, second], version=version, alignment=alignment))
    with GgufFile(path) as file:
        first, other = file.tensors["t"], file.tensors["quantised"]
        assert (first.type, first.shape) == (TensorType.F32, (2, 4))
        assert (other.type, other.shape, other.nbytes) == (TensorType.Q8_0, (2, 64), 2 * 2 * 34)
        np.testing.assert_array_equal(file.read(first).view(np.float32).reshape(2, 4), VALUES)
        assert file.read(other).tobytes() == second.data


def test_a_file_that_shrinks_after_opening(path: Path) -> None:
    path.write_bytes(gguf({}, [ONE]))
    with GgufFile(path) as file:
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ModelError, match="ends inside tensor 't'"):
            file.read(file.tensors["t"])


def test_every_truncation_is_an_error(path: Path) -> None:
    whole = gguf({"general.architecture": "llama", "n": 1, "strings": ["a", "bc"], "numbers": np.arange(3)}, [ONE])
    for length in range(len(whole)):
        message(path, whole[:length])


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be opened: No such file"):
        GgufFile(tmp_path / "none.gguf")
    with pytest.raises(ModelError, match="cannot be read"):
        GgufFile(tmp_path)


def array_of(kind: int, count: int) -> bytes:
    return string("k") + struct.pack("<IIQ", 9, kind, count)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is not a GGUF file"),
        (b"GGML" + head(0, 0)[4:], "is not a GGUF file"),
        (head(0, 0, version=1), "GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian GGUF is not supported"),
        (head(1 << 40, 0), "claims 1099511627776 tensors"),
        (head(0, 1 << 40), "claims 1099511627776 metadata keys"),
        (head(0, 1) + struct.pack("<Q", 1 << 60), "claims 1152921504606846976 bytes"),
        (head(0, 1) + struct.pack("<Q", 60000), "cut short"),
        (head(0, 1) + pair("k", b"")[:-8] + struct.pack("<Q", 1 << 63), "claims 9223372036854775808 bytes"),
        (head(0, 1) + pair(b"\xff", 1), "not UTF-8"),
        (head(0, 1) + pair("k", b"\xff"), "not UTF-8"),
        (head(0, 1) + pair("k", ["a", b"\xc3"]), "'k' holds text that is not UTF-8"),
        (head(0, 2) + pair("k", 1) * 2, "'k' appears twice"),
        (head(0, 1) + string("k") + struct.pack("<I", 13), "'k' has the unknown type 13"),
        (head(0, 1) + array_of(99, 0), "'k' has the unknown type 99"),
        (head(0, 1) + array_of(4, 1 << 62), "'k' is longer than the file"),
        (head(0, 1) + array_of(8, 1 << 62), "'k' is longer than the file"),
        (head(0, 1) + array_of(9, 1 << 62), "'k' is longer than the file"),
        (head(0, 1) + array_of(8, 1) + struct.pack("<Q", 1 << 63), "cut short"),
        (head(0, 1) + pair("k", [[[[[[1]]]]]]), "nested too deeply"),
        (gguf({"general.alignment": 12}, []), "alignment 12 is not valid"),
        (gguf({"general.alignment": 0}, []), "alignment 0 is not valid"),
        (gguf({"general.alignment": "32"}, []), "'general.alignment' is not a whole number"),
        (gguf({}, [ONE, ONE]), "tensor 't' appears twice"),
        (gguf({}, [Tensor("t", "Q4_K", (1, 256), bytes(144))]), "tensor 't' has the type Q4_K; supported are F32"),
        (gguf({}, [Tensor("t", "Q8_0", (64, 8), bytes(544))]), r"'t' of type Q8_0 has the shape \[64, 8\]"),
        (gguf({}, [Tensor("t", "F32", (4, 0), b"")]), r"has the shape \[4, 0\]"),
        (gguf({}, [Tensor("t", "F32", (1,) * 5, bytes(4))]), "has 5 dimensions"),
        (gguf({}, [Tensor("t", "F32", (), bytes(4))]), "has 0 dimensions"),
        (gguf({}, [Tensor("t", "F32", (1 << 40, 1 << 40), bytes(32))]), "shorter than its tensors"),
        (head(1, 0) + entry(ONE, 8) + bytes(256), "'t' is not aligned"),
        (head(1, 0) + entry(ONE, 1 << 62) + bytes(256), "'t' lies past the end"),
        (
            head(2, 0) + entry(ONE, 0) + entry(Tensor("u", "F32", (2, 4), b""), 0) + bytes(62),
            "shorter than its tensors",
        ),
    ],
)
def test_hostile_files(path: Path, data: bytes, reason: str) -> None:
    assert re.search(reason, message(path, data))


def test_checked_access_to_metadata(path: Path) -> None:
    path.write_bytes(gguf({"n": 3, "minus": np.int32(-1), "x": 0.5, "nan": float("nan"), "s": "a", "b": True}, []))
    with GgufFile(path) as file:
        meta = file.metadata
    assert (meta.integer("n"), meta.number("n"), meta.number("x"), meta.text("s")) == (3, 3.0, 0.5, "a")
    assert (meta.integer("none", 7), meta.text("none", "d"), meta.flag("b", False), meta.flag("none", True)) == (
        7,
        "d",
        True,
        True,
    )
    for get in (
        lambda: meta.integer("x"),
        lambda: meta.integer("minus"),
        lambda: meta.integer("b"),
        lambda: meta.number("nan"),
        lambda: meta.number("s"),
        lambda: meta.text("n"),
        lambda: meta.flag("n", True),
        lambda: meta.strings("s"),
        lambda: meta.numbers("s"),
    ):
        with pytest.raises(ModelError, match=r"the metadata value '.*' is not"):
            get()
    with pytest.raises(ModelError, match="the metadata lacks 'none'"):
        meta.integer("none")
