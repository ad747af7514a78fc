"""Our kernels as operations on MLX arrays, against MLX's own in float32; whole models of many families."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.kernels import native, operations, progress
from mlxcel.models.mlxlm import make_prompt_cache
from tests.kernels.small_models import CONFIGS, VOCABULARY, random_model

ops: Any = native.operations_module().Operations(threads=2, precision="exact")

lengths = st.sampled_from([1, 3, 15, 16, 17, 64, 100])
leading = st.lists(st.integers(0, 3), min_size=0, max_size=3)


def close(a: mx.array, b: mx.array, tolerance: float = 1e-4) -> None:
    assert a.dtype == mx.float32
    np.testing.assert_allclose(np.asarray(a), np.asarray(b.astype(mx.float32)), rtol=tolerance, atol=tolerance)


def normal(*shape: int) -> mx.array:
    """The same numbers each time."""
    return mx.random.normal(shape, key=mx.random.key(hash(shape) % 1000))


def dequantised(parts: tuple[mx.array, ...], group: int, bits: int) -> mx.array:
    words, scales, biases = parts
    return mx.dequantize(words, scales.astype(mx.float32), biases.astype(mx.float32), group, bits)


def strided(x: mx.array, how: str) -> mx.array:
    """The same values in another memory layout."""
    if how == "transposed" and x.ndim >= 2:
        return mx.contiguous(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "gaps":
        return mx.contiguous(mx.stack([x, x], axis=-1))[..., 0]
    if how == "permuted" and x.ndim >= 3:
        return mx.contiguous(x.swapaxes(0, 1)).swapaxes(0, 1)
    return x


layouts = st.sampled_from(["plain", "transposed", "gaps", "permuted"])
dtypes = st.sampled_from([mx.float32, mx.float16, mx.bfloat16])


@given(leading, lengths, st.booleans(), st.booleans(), layouts, dtypes)
@settings(max_examples=60, deadline=None)
def test_norms(batch: list[int], n: int, weighted: bool, biased: bool, layout: str, dtype: mx.Dtype) -> None:
    x = strided((normal(*batch, n) * 3 + 1).astype(dtype), layout)
    weight, bias = (normal(n) if weighted else None), (normal(n) if biased else None)
    wide = x.astype(mx.float32)
    close(ops.rms_norm(x, weight, 1e-5), mx.fast.rms_norm(wide, weight, 1e-5))
    close(ops.layer_norm(x, weight, bias, 1e-5), mx.fast.layer_norm(wide, weight, bias, 1e-5), 1e-3)


@given(leading, lengths, layouts)
@settings(max_examples=40, deadline=None)
def test_gates(batch: list[int], n: int, layout: str) -> None:
    gate, up = strided(normal(*batch, n) * 4, layout), normal(*batch, n)
    close(ops.swiglu(gate, up), nn.silu(gate) * up)
    close(ops.silu(gate), nn.silu(gate))
    close(ops.gelu(gate), nn.gelu(gate))
    close(ops.gelu_tanh(gate), nn.gelu_approx(gate))
    close(ops.relu2(gate), nn.relu2(gate))
    held, values = mx.minimum(gate, 2.0), mx.clip(up, -2.0, 2.0)
    close(ops.swiglu_limited(gate, up, alpha=1.5, limit=2.0), held * mx.sigmoid(1.5 * held) * (values + 1))


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 5),
    st.sampled_from([(8, 8), (64, 32), (80, 20)]),
    st.booleans(),
    st.sampled_from(["number", "array", "rows"]),
    st.booleans(),
    layouts,
)
@settings(max_examples=80, deadline=None)
def test_rope(
    batch: int, heads: int, length: int, sizes: tuple[int, int], traditional: bool, kind: str, listed: bool, layout: str
) -> None:
    size, dims = sizes
    x = strided(normal(batch, heads, length, size), layout)
    offset: Any = {"number": 7, "array": mx.array(300), "rows": mx.arange(batch) * 5 - 3}[kind]
    freqs = mx.random.uniform(1, 500, (dims // 2,)) if listed else None
    base, scale = (None, 1.0) if listed else (10000.0, 0.5)
    options: dict[str, Any] = {
        "traditional": traditional,
        "base": base,
        "scale": scale,
        "offset": offset,
        "freqs": freqs,
    }
    close(ops.rope(x, dims, **options), mx.fast.rope(x, dims, **options))


@given(
    leading,
    st.sampled_from([None, 2, 3, 4, 5, 6, 8]),
    st.sampled_from([32, 64, 128]),
    st.integers(1, 3),
    st.sampled_from([1, 15, 16, 50]),
    st.booleans(),
    dtypes,
    layouts,
)
@settings(max_examples=120, deadline=None)
def test_linear(
    batch: list[int],
    bits: int | None,
    group: int,
    groups: int,
    outputs: int,
    biased: bool,
    dtype: mx.Dtype,
    layout: str,
) -> None:
    inputs = group * groups if bits else group * groups + 5
    x, weight = strided(normal(*batch, inputs), layout), normal(outputs, inputs).astype(dtype)
    bias = normal(outputs).astype(dtype) if biased else None
    if bits:
        parts = mx.quantize(weight, group, bits)
        packed = ops.pack(*parts, bits=bits, group=group, bias=bias)
        weight = dequantised(parts, group, bits)
    else:
        packed = ops.pack(weight, bias=bias)
    wide = weight.astype(mx.float32)
    close(packed(x), x @ wide.T + (bias.astype(mx.float32) if bias is not None else 0), 1e-3)
    assert (packed.inputs, packed.outputs, packed.experts) == (inputs, outputs, 1)
    close(packed.unpacked(), wide, 1e-5)
    ids = mx.array([[0, outputs - 1], [-1, 0]])
    close(packed.rows(ids), packed.unpacked()[ids])


@given(
    st.sampled_from([None, 4, 8]),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_experts(bits: int | None, experts: int, tokens: int, chosen: int, m: int, biased: bool, spread: bool) -> None:
    weight = normal(experts, 32, 64)
    bias = normal(experts, 32) if biased else None
    indices = mx.random.randint(0, experts, (tokens, chosen))
    x = normal(tokens, chosen if spread else 1, m, 64)
    if bits:
        parts = mx.quantize(weight, 32, bits)
        packed = ops.pack(*parts, bits=bits, group=32, bias=bias)
        weight = dequantised(parts, 32, bits)
    else:
        packed = ops.pack(weight, bias=bias)
    expected = mx.gather_mm(x, weight.swapaxes(-1, -2), rhs_indices=indices)
    if bias is not None:
        expected = expected + mx.expand_dims(bias[indices], -2)
    close(packed.gather(x, indices), expected, 1e-3)
    if experts > 1:
        close(packed.unpacked(), weight, 1e-5)


@given(
    st.integers(1, 2),
    st.sampled_from([(1, 1), (4, 2), (3, 3)]),
    st.integers(1, 9),
    st.integers(0, 80),
    st.sampled_from([(32, 32), (80, 80), (24, 16)]),
    st.sampled_from(["none", "causal", "boolean", "additive"]),
    st.booleans(),
    dtypes,
    layouts,
)
@settings(max_examples=80, deadline=None)
def test_attention(
    batch: int,
    heads: tuple[int, int],
    length: int,
    before: int,
    dims: tuple[int, int],
    kind: str,
    sunk: bool,
    dtype: mx.Dtype,
    layout: str,
) -> None:
    keys = length + before
    q = strided(normal(batch, heads[0], length, dims[0]), layout)
    k = strided(normal(batch, heads[1], keys, dims[0]).astype(dtype), layout)
    v = normal(batch, heads[1], keys, dims[1]).astype(dtype)
    mask: Any = None
    if kind == "boolean":
        mask = normal(batch, 1, length, keys) > -0.5
        mask = mx.concatenate([mx.ones((batch, 1, length, 1), mx.bool_), mask[..., 1:]], axis=-1)  # each sees a key
    elif kind == "additive":
        mask = normal(length, keys)
    sinks = normal(heads[0]) if sunk else None
    expected = mx.fast.scaled_dot_product_attention(
        q,
        k.astype(mx.float32),
        v.astype(mx.float32),
        scale=0.2,
        mask="causal" if kind == "causal" else mask,
        sinks=sinks,
    )
    close(ops.attention(q, k, v, scale=0.2, causal=kind == "causal", mask=mask, sinks=sinks), expected, 1e-3)


def test_a_row_has_the_same_bits_in_any_company() -> None:
    packed = native.operations_module().Operations(threads=2, precision="default").pack(normal(96, 64))
    x = normal(37, 64)
    together = np.asarray(packed(x))
    for row in (0, 5, 36):
        assert np.array_equal(together[row], np.asarray(packed(x[row]))), row
    assert np.array_equal(together[4:9], np.asarray(packed(x[4:9])))


@pytest.mark.parametrize(
    "call",
    [
        lambda: ops.pack(normal(4, 8))(normal(2, 9)),
        lambda: ops.pack(normal(3, 4, 8)),
        lambda: ops.pack(mx.zeros((4, 8), mx.int32)),
        lambda: ops.pack(*mx.quantize(normal(32, 64), 32, 4), bits=8, group=32),
        lambda: ops.pack(normal(4, 8), bias=normal(5)),
        lambda: ops.pack(mx.zeros((16, 0))),
        lambda: ops.pack(mx.zeros((0, 64))),
        lambda: ops.pack(mx.zeros((0, 16, 64))),
        lambda: ops.pack(normal(4, 8))(normal(2, 8).astype(mx.complex64)),
        lambda: ops.rms_norm(normal(4, 64), normal(1), 1e-5),
        lambda: ops.rms_norm(normal(4, 64), normal(1, 64), 1e-5),
        lambda: ops.rms_norm(mx.array(1.0), None, 1e-5),
        lambda: ops.layer_norm(normal(4, 64), None, normal(1), 1e-5),
        lambda: ops.layer_norm(normal(4, 64), normal(65), None, 1e-5),
        lambda: ops.swiglu(normal(4), normal(5)),
        lambda: ops.rope(normal(1, 1, 1, 8), 9, traditional=False, base=1.0, scale=1.0, offset=0),
        lambda: ops.rope(normal(1, 1, 1, 8), 8, traditional=False, base=None, scale=1.0, offset=0),
        lambda: ops.rope(normal(2, 1, 1, 8), 8, traditional=False, base=1.0, scale=1.0, offset=mx.zeros((3,))),
        lambda: native.operations_module().Operations(threads=0, precision="exact"),
        lambda: native.operations_module().Operations(threads=1, precision="sloppy"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        call()


def logits(model: nn.Module, prompt: list[int], following: list[int]) -> np.ndarray:
    """Logits after each token: the prompt in two pieces, then token by token."""
    cache = make_prompt_cache(model)
    rows: list[np.ndarray] = []
    for piece in (prompt[:13], prompt[13:], *([token] for token in following)):
        rows.append(np.asarray(model(mx.array([piece]), cache=cache)[0].astype(mx.float32)))
    return np.concatenate(rows)


@pytest.mark.parametrize("bits", [None, 4])
@pytest.mark.parametrize("family", CONFIGS)
def test_models_say_the_same_as_on_stock_mlx(family: str, bits: int | None) -> None:
    rng = np.random.default_rng(1)
    prompt, following = rng.integers(0, VOCABULARY, 21).tolist(), rng.integers(0, VOCABULARY, 4).tolist()
    expected = logits(random_model(family, bits=bits), prompt, following)
    model = random_model(family, bits=bits)
    operations.install(model, threads=2, precision="exact")
    actual = logits(model, prompt, following)
    assert np.abs(expected).max() > 1, "the comparison means something"
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_weights_are_held_once() -> None:
    model = random_model("qwen3_moe", bits=4)
    operations.install(model, threads=2, precision="default")
    left = [name for name, _ in nn.utils.tree_flatten(model.parameters()) if "norm" not in name]
    assert left == []


def test_progress_is_reported_while_weights_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PROGRESS_SECONDS", 0.0)
    words: list[str] = []
    operations.install(random_model("qwen3_moe", bits=4), threads=2, precision="default", progress=words.append)
    assert words[0].startswith("packing weights: layer 1 of ")
    assert words[-1] == f"packing weights: layer {len(words)} of {len(words)}"


def test_other_models_of_the_family_stay_on_mlx() -> None:
    model, untouched = random_model("llama"), random_model("llama")
    operations.install(model, threads=1, precision="exact")
    assert type(untouched.layers[0].mlp.gate_proj) is nn.Linear
    assert type(model.layers[0]) is not type(untouched.layers[0])
    assert isinstance(model.layers[0], type(untouched.layers[0]))
    assert isinstance(model.layers[0].mlp.gate_proj, nn.Linear)
