"""Any mlx-lm model on the native kernels: its layers packed, the operations its code names exchanged for ours.

The model's own Python code keeps running; what it builds is an MLX graph whose nodes are our kernels wherever there is
one, and MLX's own elsewhere.
"""

# mlx and mlx-lm carry no or partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn

from mlxcel.kernels import layers, native, paged
from mlxcel.kernels.progress import PackingProgress, Report
from mlxcel.kernels.rebind import Rebinder

_MODEL_PACKAGES = ("mlx", "mlx_lm", "mlx_vlm", "mlx_audio")
_HALF_TYPES = (mx.float16, mx.bfloat16)


def install(model: nn.Module, *, threads: int, precision: str, progress: Report | None = None) -> Any:
    """Run `model` on the native kernels from now on, in place. Its activations become float32. Returns the
    `mlxcel._mlx_kernels.Operations` that it runs on.

    precision: `default`, `fast` or `exact`, of products with quantised weights. progress: called with a few
    words every few seconds. Raises NativeUnavailable.
    """
    operations = native.operations_module().Operations(threads=threads, precision=precision)
    _pack_layers(model, operations, progress)
    _compute_in_float32(model)
    rebinder = Rebinder(_exchanges(operations), _MODEL_PACKAGES)
    stock_attention = importlib.import_module("mlx_lm.models.base").scaled_dot_product_attention
    rebinder.exchange(stock_attention, paged.attention(rebinder.function(stock_attention)))
    for part in model.modules():
        if not isinstance(part, layers.Packed):
            part.__class__ = rebinder.subclass(type(part), nn.Module)
        for name, value in list(vars(part).items()):
            setattr(part, name, rebinder.exchanged(value))
    return operations


def _pack_layers(model: nn.Module, operations: Any, progress: Report | None) -> None:
    found = [(module, packed) for module in model.modules() if (packed := layers.packed_class(module)) is not None]
    progressing = PackingProgress(progress, len(found))
    for done, (module, packed) in enumerate(found, start=1):
        layers.pack(module, packed, operations)
        mx.clear_cache()  # what it was packed from
        progressing.packed(done)


def _compute_in_float32(model: nn.Module) -> None:
    """The parameters that are left are small: norms, biases, convolutions."""

    def convert(array: mx.array) -> mx.array:
        return array.astype(mx.float32) if array.dtype in _HALF_TYPES else array

    cast(Any, model).apply(convert)
    mx.eval(cast(Any, model).parameters())


def _exchanges(operations: Any) -> list[tuple[Any, Any]]:
    """Pairs of what a model's code may name, and our form of it."""
    fast = SimpleNamespace(**vars(mx.fast))
    fast.rms_norm = _on_cpu(operations.rms_norm)
    fast.layer_norm = _on_cpu(operations.layer_norm)
    fast.rope = _on_cpu(operations.rope)
    fast.scaled_dot_product_attention = _attention(operations)
    core = SimpleNamespace(**vars(mx))
    core.fast = fast
    activations = importlib.import_module("mlx_lm.models.activations")
    functions = [
        (nn.silu, operations.silu),
        (nn.gelu, operations.gelu),
        (nn.gelu_approx, operations.gelu_tanh),
        (nn.relu2, operations.relu2),
        (activations.swiglu, operations.swiglu),
        (activations.swiglu_oai, operations.swiglu_limited),
    ]
    ours = {id(theirs): own for theirs, own in functions}
    layers_of_nn = SimpleNamespace(**{name: ours.get(id(value), value) for name, value in vars(nn).items()})
    return [(mx, core), (mx.fast, fast), (nn, layers_of_nn), *functions]


def _on_cpu(operation: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """`operation` under the signature of mlx.fast, which also takes a stream: ours has one."""

    def call(*arguments: Any, stream: Any = None, **options: Any) -> mx.array:
        return operation(*arguments, **options)

    return call


def _attention(operations: Any) -> Callable[..., mx.array]:
    def scaled_dot_product_attention(
        q: mx.array,
        k: mx.array,
        v: mx.array,
        *,
        scale: float,
        mask: mx.array | str | None = None,
        sinks: mx.array | None = None,
        stream: Any = None,
    ) -> mx.array:
        """`mx.fast.scaled_dot_product_attention`."""
        if isinstance(mask, str) and mask != "causal":
            raise ValueError(f"unknown mask {mask!r}: only 'causal' has a name")
        causal = isinstance(mask, str)
        return operations.attention(q, k, v, scale=scale, causal=causal, mask=None if causal else mask, sinks=sinks)

    return scaled_dot_product_attention
