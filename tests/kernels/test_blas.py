"""OpenBLAS products against MLX's own."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel import kernels
from mlxcel.kernels import blas


@pytest.fixture(autouse=True, scope="module")
def no_native_kernels() -> Iterator[None]:
    """This is what runs without them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLXCEL_KERNELS", "mlx")
        yield


class Toy(nn.Module):
    """An embedding, a layer and a head, as in a decoder."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(outputs, inputs)
        self.layer = nn.Linear(inputs, outputs, bias=bias)
        self.lm_head = nn.Linear(inputs, outputs, bias=bias)


def toy(inputs: int, outputs: int, *, bias: bool = False, bits: int | None = None, group: int = 32) -> Toy:
    mx.random.seed(inputs * 1000 + outputs)
    model = Toy(inputs, outputs, bias)
    if bits is not None:
        nn.quantize(model, group_size=group, bits=bits)
    mx.eval(model.parameters())
    return model


def close(a: mx.array, b: mx.array) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-4)


@given(
    st.sampled_from([None, 2, 3, 4, 5, 6, 8]),
    st.sampled_from([32, 64, 128]),
    st.integers(1, 3),
    st.integers(1, 70),
    st.lists(st.integers(1, 6), min_size=1, max_size=2),
    st.booleans(),
    st.sampled_from([256, 4096, 1 << 21]),
)
@settings(max_examples=60, deadline=None)
def test_products_equal_mlx(
    bits: int | None, group: int, groups: int, outputs: int, leading: list[int], bias: bool, block: int
) -> None:
    inputs = group * groups
    stock, fast = (toy(inputs, outputs, bias=bias, bits=bits, group=group) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blas, "BLOCK_ELEMENTS", block)
        kernels.install(fast)
        x = mx.random.normal((*leading, inputs))
        close(fast.layer(x), stock.layer(x))
        close(fast.lm_head(x), stock.lm_head(x))
        close(fast.embed_tokens.as_linear(x), stock.embed_tokens.as_linear(x))
    ids = mx.array([[0, outputs - 1]])
    assert mx.array_equal(fast.embed_tokens(ids), stock.embed_tokens(ids))


@pytest.mark.parametrize("bits", [None, 4])
def test_every_product_of_a_float32_model_is_replaced(bits: int | None) -> None:
    model = toy(64, 96, bits=bits)
    kernels.install(model)
    names = {type(module).__name__ for _, module in model.named_modules()} - {"Toy"}
    assert all(name.startswith("Blas") for name in names)


def test_half_precision_models_keep_mlx_products() -> None:
    model = toy(64, 96)
    model.set_dtype(mx.bfloat16)
    kernels.install(model)
    assert type(model.layer) is nn.Linear
    assert model.layer(mx.zeros((8, 64), mx.bfloat16)).dtype == mx.bfloat16


@pytest.mark.parametrize("bits", [None, 4])
def test_a_closed_gate_leaves_the_head_uncomputed(bits: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy(64, 96, bits=bits)
    installed = kernels.install(model)
    computed: list[int] = []
    product = blas._matrix
    monkeypatch.setattr(blas, "_matrix", lambda x: computed.append(x.size) or product(x))
    x = mx.random.normal((8, 64))
    with installed.without_logits():
        lazy = model.lm_head(x), model.embed_tokens.as_linear(x)
        model.layer(x)
    assert len(computed) == 1, "the layer is computed, the heads are not"
    close(lazy[0], model.lm_head(x))
    close(lazy[1], model.embed_tokens.as_linear(x))


def test_the_gate_opens_again_after_a_failure() -> None:
    gate = blas.LogitsGate()
    with pytest.raises(RuntimeError), gate.closed():
        raise RuntimeError
    assert gate.open


def test_weights_stay_where_models_look_for_them() -> None:
    model = toy(64, 96, bits=4)
    before = model.layer.weight
    kernels.install(model)
    assert model.layer.weight is before
    assert isinstance(model.layer, nn.QuantizedLinear)
