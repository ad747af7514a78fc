from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.models import gguf_blocks
from mlxcel.models.gguf import TensorInfo, TensorType
from tests.models.gguf_writer import Tensor, decode

KINDS = ["Q4_0", "Q4_1", "Q8_0"]


def random_blocks(kind: str, rows: int, columns: int) -> Tensor:
    """Blocks of random integers under random finite scales, tiny and negative ones among them."""
    rng = np.random.default_rng(rows * columns)
    blocks = rows * columns // 32
    scales = (rng.standard_normal((blocks, 2)) * 10.0 ** rng.integers(-7, 2, (blocks, 2))).astype(np.float16)
    floats = scales if kind == "Q4_1" else scales[:, :1]
    integers = rng.integers(0, 256, (blocks, 32 if kind == "Q8_0" else 16), dtype=np.uint8)
    data = np.concatenate([np.ascontiguousarray(floats).view(np.uint8), integers], axis=1)
    return Tensor("t", kind, (rows, columns), data.tobytes())


def converted(tensor: Tensor) -> tuple[TensorInfo, np.ndarray]:
    info = TensorInfo("t", TensorType[tensor.kind], tensor.shape, 0, len(tensor.data))
    return info, np.frombuffer(tensor.data, np.uint8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (7, 96), (64, 64)])
def test_affine_weights_stand_for_exactly_the_stored_values(kind: str, rows: int, columns: int) -> None:
    tensor = random_blocks(kind, rows, columns)
    affine = gguf_blocks.affine(*converted(tensor))
    scales = mx.array(affine.scales).astype(mx.float32)
    biases = affine.biases
    biases = scales * biases if isinstance(biases, int) else mx.array(biases).astype(mx.float32)
    values = mx.dequantize(mx.array(affine.weight), scales, biases, group_size=32, bits=affine.bits)
    np.testing.assert_array_equal(np.array(values), decode(tensor))


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_without_a_seam(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info, data = converted(random_blocks(kind, 10, 64))
    whole = gguf_blocks.affine(info, data)
    monkeypatch.setattr(gguf_blocks, "_PIECE_BLOCKS", 3)
    np.testing.assert_array_equal(gguf_blocks.affine(info, data).weight, whole.weight)


def test_dense_values() -> None:
    values = np.array([[1.0, -2.5], [0.25, 3.0]], np.float32)
    for kind, stored in (
        ("F32", values),
        ("F16", values.astype(np.float16)),
        ("BF16", (values.view(np.uint32) >> 16).astype(np.uint16)),
    ):
        info, data = converted(Tensor("t", kind, (2, 2), stored.tobytes()))
        assert gguf_blocks.quantised_bits(info.type) is None
        np.testing.assert_array_equal(gguf_blocks.dense(info, data), stored)
