"""Which caches a model's sequences get, found out by trying: which of its layers can keep their keys and values in the
native paged cache, and what mlx-lm's caches of the others take.

A model's code decides what it does with its cache, and there are a hundred of them. So a few tokens are run on mlx-lm's
caches and on paged ones, alone and as a batch of rows of different lengths; what does not come out the same stays on
mlx-lm's caches.
"""

# mlx carries partial annotations.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from mlxcel.engine.cache.batch import LayerCaches
from mlxcel.engine.cache.footprint import footprint, parts
from mlxcel.engine.cache.forgetting import ForgettingCache, able_to_forget
from mlxcel.engine.cache.kv_mode import KvMode
from mlxcel.engine.cache.quantised import GROUP, Packing, QuantisedCache
from mlxcel.engine.cache.retention import Retention
from mlxcel.engine.cache.rows import RowCaches
from mlxcel.engine.cache.sizing import Cost
from mlxcel.kernels.paged import BLOCK, LayerShape, PagedKv
from mlxcel.models.errors import ModelError

log = logging.getLogger(__name__)

Logits = npt.NDArray[np.float32]

_PROMPTS = ((1, 2, 3, 4, 5, 6, 7), (3, 1, 2))
_TOLERANCE = 0.05
"""Largest difference of logits, as a share of the largest one: half-precision keys and values cost about 0.01."""
_TOLERANCE_FLOAT32 = 0.002
"""The same where all is float32."""


def paged_kv(
    model: nn.Module, make: Callable[[], LayerCaches], operations: Any, budget: Callable[[int], int]
) -> PagedKv | None:
    """A paged cache for `model`, or None when it cannot use one.

    make: fresh mlx-lm caches. operations: the `mlxcel._mlx_kernels.Operations` that the model runs on. budget: bytes
    for all blocks, from the size of one.
    """
    made: list[LayerCaches] = []

    def make_and_note() -> LayerCaches:
        made.append(make())
        return made[-1]

    expected = _run_alone(model, RowCaches(make_and_note))
    shapes = {place: shape for place, cache in enumerate(made[-1]) if (shape := _shape(cache)) is not None}
    if not shapes:
        return None
    kv = PagedKv(operations, shapes, budget(sum(shape.block_bytes for shape in shapes.values())))
    rows = RowCaches(make, kv)
    try:
        actual = _run_together(model, rows) if rows.can_batch else _run_alone(model, rows)
    except Exception as reason:  # third-party code with a cache it has never seen
        log.debug("no paged cache for this model: %r", reason)
        return None
    if not _alike(actual, expected, _TOLERANCE):
        log.debug("no paged cache for this model: other logits")
        return None
    return kv


def packing(model: nn.Module, make: Callable[[], LayerCaches], mode: KvMode) -> Callable[[], LayerCaches]:
    """`make`, with keys and values packed as `mode` says, in those layers that allow it."""
    plain = make()
    stock = _run(model, plain)
    chosen = {
        place: mode.of_layer(place, len(plain))
        for place, cache in enumerate(plain)
        if type(cache).__name__ == "KVCache" and _packable(cache)
    }
    chosen = {place: bits for place, bits in chosen.items() if bits != (None, None)}

    def make_packed() -> LayerCaches:
        caches = make()
        for place, (keys, values) in chosen.items():
            caches[place] = QuantisedCache(caches[place], Packing(keys), Packing(values))
        return caches

    try:
        packed = _run(model, make_packed())
    except Exception as reason:  # third-party code with a cache it has never seen
        log.warning("keys and values cannot be packed for this model: %r", reason)
        return make
    log.debug("largest difference of logits by packing: %.3g", np.abs(packed - stock).max())
    log.info("keys and values are packed in %d of %d layers", len(chosen), len(plain))
    return make_packed


def _packable(cache: Any) -> bool:
    """Whether a used cache holds keys and values of one shape that has whole groups."""
    return cache.keys is not None and cache.keys.shape == cache.values.shape and cache.keys.shape[-1] % GROUP == 0


def forgetting(model: nn.Module, make: Callable[[], LayerCaches]) -> Callable[[], LayerCaches]:
    """`make`, with all caches that grow able to forget. Raises ModelError when one is not."""

    def make_forgetting() -> LayerCaches:
        return [able_to_forget(cache) for cache in make()]

    made = make_forgetting()
    try:
        _run(model, made)
        for cache in parts(made):
            if isinstance(cache, ForgettingCache):
                cache.forget([0], 1, 1)
            elif footprint([cache]).grows:
                raise ModelError(f"a {type(cache).__name__} keeps all it is given")
        _run(model, made)
    except Exception as reason:  # third-party code with a cache it has never seen
        raise ModelError(f"--max-kv-size: this model cannot forget tokens: {reason}") from reason
    return make_forgetting


def row_caches(
    model: nn.Module,
    make: Callable[[], LayerCaches],
    paged: PagedKv | None,
    budget: Callable[[Cost], int],
    retention: Retention | None = None,
) -> RowCaches:
    """Caches for the sequences of `model`, those of `make` where `paged` has none.

    budget: bytes for everything, from what a sequence takes. retention: what is kept of a sequence; None: all. Raises
    ModelError when this model's caches keep all or nothing.
    """
    if retention is not None:
        make = forgetting(model, make)
    together = paged is not None or _batches(model, make)
    used = make()
    stock = [cache for place, cache in enumerate(used) if paged is None or place not in paged.layers]
    if not stock:
        return RowCaches(make, paged, retention=retention)
    _run(model, used)
    taken, block = footprint(stock), 0 if paged is None else paged.cache.block_bytes
    most = budget(lambda tokens: taken.bytes(tokens) + -(-tokens // BLOCK) * block)
    return RowCaches(make, paged, taken, most, retention=retention, together=together)


def _batches(model: nn.Module, make: Callable[[], LayerCaches]) -> bool:
    """Whether a model says in a batch on mlx-lm's caches what it says alone. Most do; some crash, or confuse rows."""
    rows = RowCaches(make)
    if not rows.can_batch:
        return False
    try:
        alone, together = _run_alone(model, RowCaches(make)), _run_together(model, rows)
    except Exception as reason:
        log.warning("this model cannot be batched: %r", reason)
        return False
    on_cpu = mx.default_device() == mx.Device(mx.cpu)  # where activations are float32
    if not _alike(together, alone, _TOLERANCE_FLOAT32 if on_cpu else _TOLERANCE):
        log.warning("this model cannot be batched: it says other things in company")
        return False
    return True


def _alike(actual: Logits, expected: Logits, tolerance: float) -> bool:
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


def _shape(cache: Any) -> LayerShape | None:
    """What a cache that has been used holds; None when it is not of a kind that can be paged."""
    kind = type(cache).__name__
    if kind not in ("KVCache", "RotatingKVCache") or cache.keys is None or getattr(cache, "keep", 0):
        return None
    shape = LayerShape(cache.keys.shape[1], cache.keys.shape[3], getattr(cache, "max_size", 0))
    return shape if shape.servable and cache.values.shape == cache.keys.shape else None


def _run(model: Any, caches: LayerCaches) -> Logits:
    """Logits [1, vocabulary] after two tokens."""
    logits = model(mx.array([[0, 0]]), cache=caches)[:, -1].astype(mx.float32)
    mx.eval(logits, [cache.state for cache in caches])
    return np.asarray(logits)


def _forward(model: Any, caches: RowCaches, layers: LayerCaches, tokens: list[list[int]]) -> Logits:
    logits = model(mx.array(tokens), cache=layers)[:, -1].astype(mx.float32)
    mx.eval(logits)
    caches.commit()
    return np.asarray(logits)


def _run_alone(model: Any, caches: RowCaches) -> Logits:
    """Logits [2, vocabulary] after a prompt and one more token of two sequences, one by one."""
    logits: list[Logits] = []
    for key, prompt in enumerate(_PROMPTS):
        _forward(model, caches, caches.of_row(key, len(prompt)), [list(prompt)])
        logits.append(_forward(model, caches, caches.of_row(key, 1), [[prompt[0]]]))
        caches.discard(key)
    return np.concatenate(logits)


def _run_together(model: Any, caches: RowCaches) -> Logits:
    """The same with both sequences in one batch."""
    for key, prompt in enumerate(_PROMPTS):
        _forward(model, caches, caches.of_row(key, len(prompt)), [list(prompt)])
        caches.join(key)
    logits = _forward(model, caches, caches.of_batch(), [[prompt[0]] for prompt in _PROMPTS])
    caches.keep([])
    return logits
