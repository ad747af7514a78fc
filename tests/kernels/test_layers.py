"""Layers with packed weights, against the same layers on MLX."""

from __future__ import annotations

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.kernels import layers, native
from mlxcel.models import mlxlm

ops: Any = native.operations_module().Operations(threads=2, precision="exact")
MODES = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


def packed(module: nn.Module) -> Any:
    kind = layers.packed_class(module)
    assert kind is not None
    layers.pack(module, kind, ops)
    return module


def close(a: mx.array, b: mx.array) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b.astype(mx.float32)), rtol=1e-2, atol=1e-2)


def quantised(module: Any, mode: str) -> Any:
    group, bits = MODES[mode]
    return module.to_quantized(group_size=group, bits=bits, mode=mode)


@pytest.mark.parametrize("mode", [None, *MODES])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(mode: str | None, bias: bool) -> None:
    mx.random.seed(0)
    layer: Any = nn.Linear(128, 48, bias=bias)
    stock = layer if mode is None else quantised(layer, mode)
    x = mx.random.normal((2, 3, 128))
    expected, kind = stock(x), type(stock)
    fast = packed(stock)
    close(fast(x), expected)
    assert isinstance(fast, kind)
    assert dict(fast) == {} or "weight" not in fast
    assert fast.weight.shape == (48, 128)


@pytest.mark.parametrize("mode", [None, *MODES])
def test_embedding(mode: str | None) -> None:
    mx.random.seed(0)
    layer: Any = nn.Embedding(40, 128)
    stock = layer if mode is None else quantised(layer, mode)
    ids, x = mx.array([[0, 39, 7]]), mx.random.normal((4, 128))
    rows, products = stock(ids), stock.as_linear(x)
    fast = packed(stock)
    close(fast(ids), rows)
    close(fast.as_linear(x), products)


@pytest.mark.parametrize("mode", [None, "affine", "mxfp4", "mxfp8"])
@pytest.mark.parametrize("bias", [True, False])
def test_experts(mode: str | None, bias: bool) -> None:
    mlxlm.prepare()
    from mlx_lm.models.switch_layers import SwitchGLU, SwitchLinear

    mx.random.seed(0)
    layer: Any = SwitchLinear(128, 32, 5, bias=bias)
    if bias:
        layer.bias = mx.random.normal((5, 32))
    stock = layer if mode is None else quantised(layer, mode)
    x, indices = mx.random.normal((6, 1, 1, 128)), mx.random.randint(0, 5, (6, 2))
    expected = stock(x, indices)
    close(packed(stock)(x, indices), expected)

    block: Any = SwitchGLU(128, 64, 5, bias=bias)
    many = mx.random.normal((40, 128))  # enough to be sorted by expert
    chosen = mx.random.randint(0, 5, (40, 2))
    expected = block(many, chosen)
    for part in (block.gate_proj, block.up_proj, block.down_proj):
        packed(part)
    close(block(many, chosen), expected)


def test_nvfp4_experts_have_a_scale_each() -> None:
    mlxlm.prepare()
    from mlx_lm.models.switch_layers import SwitchLinear

    mx.random.seed(0)
    layer: Any = SwitchLinear(128, 32, 3, bias=False)
    layer.weight = layer.weight * mx.array([0.01, 1.0, 50.0])[:, None, None]
    stock = layer.to_quantized(group_size=16, bits=4, mode="nvfp4", global_scale=True)
    scales, weight = stock.global_scale, stock.weight
    expected = mx.stack(
        [
            mx.dequantize(weight[e], stock.scales[e], group_size=16, bits=4, mode="nvfp4", global_scale=scales[e])
            for e in range(3)
        ]
    )
    close(packed(stock).weight, expected)


@given(st.lists(st.integers(0, 255), min_size=64, max_size=64), st.integers(100, 150), st.integers(100, 150))
@settings(max_examples=30, deadline=None)
def test_mxfp4_loses_nothing(pairs: list[int], first: int, second: int) -> None:
    words = mx.array(pairs, mx.uint8).reshape(2, 32).view(mx.uint32)
    scales = mx.array([[first, second], [second, first]], mx.uint8)
    ours = mx.dequantize(*layers.mxfp4_as_affine(words, scales), 32, 8)
    theirs = mx.dequantize(words, scales, group_size=32, bits=4, mode="mxfp4", dtype=mx.float32)
    assert mx.array_equal(ours, theirs)


@pytest.mark.parametrize(
    "module", [nn.Conv1d(4, 4, 3), nn.RMSNorm(8), nn.Linear(128, 8).to_quantized(group_size=64, bits=4)]
)
def test_only_what_can_be_packed_is(module: Any) -> None:
    if isinstance(module, nn.QuantizedLinear):
        module.mode = "something new"
    assert layers.packed_class(module) is None


@pytest.mark.parametrize("mode", [None, *MODES])
def test_a_matrix_for_each_head(mode: str | None) -> None:
    mx.random.seed(0)
    mla: Any = importlib.import_module("mlx_lm.models.mla")
    layer = mla.MultiLinear(128, 48, 3)
    stock = layer if mode is None else quantised(layer, mode)
    x, latent = mx.random.normal((2, 3, 5, 128)), mx.random.normal((2, 1, 5, 48))
    expected, turned = stock(x), stock(latent, transpose=False)
    fast = packed(stock)
    close(fast(x), expected)
    for _ in range(2):
        close(fast(latent, transpose=False), turned)
    assert fast(latent, transpose=False).shape == (2, 3, 5, 128)


def test_heads_of_odd_sizes_stay_on_mlx() -> None:
    mla: Any = importlib.import_module("mlx_lm.models.mla")
    assert layers.packed_class(mla.MultiLinear(128, 40, 3)) is None


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_that_is_given_other_weights_is_an_ordinary_one(bias: bool) -> None:
    layer: Any = nn.Linear(32, 16, bias=bias)
    fast, x = packed(layer), mx.random.normal((2, 32))
    before = fast(x)
    fast.weight = 2 * fast.weight
    assert type(fast) is nn.Linear
    offset = fast.bias if bias else 0.0
    close(fast(x) - offset, 2 * (before - offset))


def test_other_layers_keep_their_weights() -> None:
    fast = packed(nn.Embedding(40, 32))
    with pytest.raises(AttributeError, match="packed"):
        fast.weight = mx.zeros((40, 32))
