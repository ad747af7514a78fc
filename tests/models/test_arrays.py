from __future__ import annotations

from collections import Counter

import mlx.core as mx
import mlx.nn as nn
import pytest

from mlxcel.models import arrays


@pytest.fixture(params=["cpu", "gpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(arrays, "on_cpu", lambda: request.param == "cpu")
    return request.param


def types(model: nn.Module) -> set[mx.Dtype]:
    return {array.dtype for array in arrays.parameters(model).values()}


def layers(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)


def in_type(module: nn.Module, dtype: mx.Dtype) -> nn.Module:
    module.set_dtype(dtype)
    return module


def quantised(dtype: mx.Dtype) -> nn.Module:
    return nn.QuantizedLinear.from_linear(in_type(nn.Linear(64, 64), dtype), 32, 4)


def test_common_type(device: str) -> None:
    sizes = Counter({mx.float16: 5, mx.bfloat16: 6, mx.float32: 1})
    assert arrays.common_float_type(sizes, quantised=False) == mx.bfloat16
    assert arrays.common_float_type(sizes, quantised=True) == (mx.float32 if device == "cpu" else mx.bfloat16)
    assert arrays.common_float_type(Counter(), quantised=False) == mx.float32


def test_quantised_models(device: str) -> None:
    model = layers(quantised(mx.bfloat16), in_type(nn.RMSNorm(64), mx.bfloat16))
    arrays.unify_float_types(model)
    assert types(model) == {mx.uint32, mx.float32 if device == "cpu" else mx.bfloat16}


def test_dense_models_keep_their_type_and_their_float32_parts(device: str) -> None:
    model = layers(in_type(nn.Linear(8, 8), mx.float16), nn.RMSNorm(8))
    arrays.unify_float_types(model)
    assert types(model) == {mx.float16, mx.float32}


def test_two_half_types_become_the_larger_one(device: str) -> None:
    model = layers(in_type(nn.Linear(32, 32), mx.bfloat16), in_type(nn.RMSNorm(32), mx.float16))
    arrays.unify_float_types(model)
    assert types(model) == {mx.bfloat16}


def test_float32_models_stay(device: str) -> None:
    model = layers(nn.Linear(8, 8))
    arrays.unify_float_types(model)
    assert types(model) == {mx.float32}


def test_parameters_by_path() -> None:
    assert set(arrays.parameters(layers(nn.Linear(2, 2)))) == {"layers.0.weight", "layers.0.bias"}
