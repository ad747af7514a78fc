"""From a checkpoint to a backend: the native decoder where it can run the model, MLX elsewhere."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import mlx.core as mx

from mlxcel import heap, kernels
from mlxcel.config import ServerConfig
from mlxcel.engine.backend import Backend, ModelInfo
from mlxcel.engine.cache.batch import LayerCaches
from mlxcel.engine.cache.kv_mode import kv_mode
from mlxcel.engine.cache.memory import free_memory
from mlxcel.engine.cache.probe import packing, paged_kv, row_caches
from mlxcel.engine.cache.retention import SINK, Retention
from mlxcel.engine.cache.sizing import Cost, kv_budget
from mlxcel.engine.native_backend import NativeBackend
from mlxcel.engine.runner import MlxBackend
from mlxcel.engine.sampling.rows import make_rows
from mlxcel.kernels import decoder, native
from mlxcel.kernels.paged import BLOCK, PagedKv
from mlxcel.models.device import select_device
from mlxcel.models.errors import ModelError
from mlxcel.models.load import LoadedModel, load_model
from mlxcel.models.mlxlm import make_prompt_cache

log = logging.getLogger(__name__)

CPU_BUFFER_CACHE = 64 << 20
"""Bytes of freed buffers MLX keeps for reuse on a CPU; its default is most of the memory."""


def load_backend(path: Path, name: str, config: ServerConfig) -> Backend:
    """Load the checkpoint at `path` and serve it as `name`. Raises ModelError.

    Call it on the thread that will use the backend.
    """
    device = select_device(config.model.device)
    if device == "cpu":
        mx.set_cache_limit(CPU_BUFFER_CACHE)
        try:
            native.check_wanted()
        except ValueError as error:
            raise ModelError(f"MLXCEL_KERNELS: {error}") from error
    backend = _backend(path, name, config, device, stock=kernels.stock_wanted())
    if config.model.warmup:
        warm_up(backend)
    return backend


def _backend(path: Path, name: str, config: ServerConfig, device: str, *, stock: bool) -> Backend:
    """stock: MLX's own arithmetic is wanted on a CPU."""
    loaded = load_model(path, progress=log.info)
    for token, _ in config.sampling.logit_bias or ():
        if token >= loaded.vocabulary:
            raise ModelError(f"--logit-bias names the token id {token}; the model has {loaded.vocabulary} tokens")
    info = ModelInfo(
        name=name,
        tokenizer=loaded.tokenizer,
        vocabulary=loaded.vocabulary,
        context_window=loaded.context_window,
        chat_template=loaded.chat_template,
        special_tokens=loaded.special_tokens,
        generation_defaults=loaded.generation_defaults,
        architecture=loaded.architecture,
        device=device,
        weight_bytes=loaded.weight_bytes,
    )
    on_cpu = device == "cpu" and not stock
    if on_cpu and (backend := _native_backend(loaded, info, config)) is not None:
        return backend
    try:
        return _mlx_backend(loaded, info, config, stock=stock)
    except (ModelError, MemoryError):
        raise
    except Exception as reason:  # a model's code meets layers that it did not expect
        if not on_cpu:
            raise
        log.warning("the native kernels cannot run this model, which will be slow without them: %r", reason)
        del loaded  # its weights have been packed
        return _backend(path, name, config, device, stock=True)


def warm_up(backend: Backend) -> None:
    """Run one prefill and one step, so that the first request does not pay for what is set up lazily."""
    key, token = -1, min(backend.info.tokenizer.eos_token_ids, default=0)
    backend.prefill(key, [token])
    backend.join(key)
    backend.decode([token])
    backend.leave([])


def _mlx_backend(loaded: LoadedModel, info: ModelInfo, config: ServerConfig, *, stock: bool) -> MlxBackend:
    settings = config.model
    installed = kernels.install(
        loaded.model, threads=settings.threads, precision=settings.cpu_precision, stock=stock, progress=log.info
    )
    heap.return_free_memory()
    if installed.operations is None and (settings.threads or settings.cpu_precision != "default"):
        log.warning("--threads and --cpu-precision have no effect: this model runs on MLX")

    def make() -> LayerCaches:
        return make_prompt_cache(loaded.model)

    if installed.operations is not None:
        _warn_of_kv_mode(config)
    elif not (mode := kv_mode(config.cache)).plain:
        make = packing(loaded.model, make, mode)

    retention = _retention(config, info)

    def budget(cost: Cost) -> int:
        return _kv_budget(config, info, cost, retention)

    paged: PagedKv | None = None
    if installed.operations is not None:
        paged = paged_kv(loaded.model, make, installed.operations, lambda block: budget(_cost_of_blocks(block)))
    caches = row_caches(loaded.model, make, paged, budget, retention)
    info = dataclasses.replace(info, kernels=installed.description, can_batch=caches.can_batch)
    return MlxBackend(loaded.model, info, installed, caches, make_rows(settings.threads or 0))


def _native_backend(loaded: LoadedModel, info: ModelInfo, config: ServerConfig) -> NativeBackend | None:
    """The native decoder with this model's weights, or None when it is not here or cannot run the model."""
    shape = decoder.decoder_shape(loaded.model)
    if shape is None:
        return None
    try:
        instruction_set = native.instruction_set()
    except native.NativeUnavailable:
        return None  # `kernels.install` says so
    _warn_of_kv_mode(config)
    threads = config.model.threads or native.default_threads()
    retention = _retention(config, info)
    log.info("packing weights for %s", instruction_set)
    packed = decoder.build_decoder(
        loaded.model,
        shape,
        precision=config.model.cpu_precision,
        threads=threads,
        kv_budget=_kv_budget(config, info, _cost_of_blocks(shape.kv_block_bytes), retention),
        progress=log.info,
    )
    description = f"cpu: {instruction_set}, {native.counted(threads)}, {config.model.cpu_precision} precision"
    info = dataclasses.replace(info, kernels=description, weight_bytes=packed.weight_bytes)
    return NativeBackend(packed, info, shape.vocabulary, retention)


def _warn_of_kv_mode(config: ServerConfig) -> None:
    if not kv_mode(config.cache).plain:
        log.warning("the native kernels do not pack keys and values: they stay bfloat16")


def _retention(config: ServerConfig, info: ModelInfo) -> Retention | None:
    size = config.engine.max_kv_size
    if size is None or size >= info.context_window:
        return None
    retention = Retention.within(size)
    log.info("keys and values of a sequence: of its first %d tokens, and the latest of %d", SINK, retention.most)
    return retention


def _kv_budget(config: ServerConfig, info: ModelInfo, cost: Cost, retention: Retention | None) -> int:
    def kept(tokens: int) -> int:
        return cost(tokens if retention is None else min(tokens, retention.most))

    return kv_budget(config.engine, config.cache, info.context_window, kept, free_memory())


def _cost_of_blocks(block_bytes: int) -> Cost:
    return lambda tokens: -(-tokens // BLOCK) * block_bytes
