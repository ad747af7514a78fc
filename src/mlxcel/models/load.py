"""From files to a loaded model: the one entry point for GGUF files, MLX folders and safetensors folders."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from mlxcel.models import arrays, mlxlm, sidecar, tokenizer_folder
from mlxcel.models.errors import ModelError, one_line
from mlxcel.models.gguf import GgufFile, TensorType
from mlxcel.models.gguf_blocks import quantised_bits
from mlxcel.models.gguf_llama import llama_config, load_llama
from mlxcel.models.tokenizer import TextTokenizer
from mlxcel.models.tokenizer_gguf import gguf_special_tokens, gguf_tokenizer
from mlxcel.models.weight_files import as_model_files, check_weight_file, missing_shards, weight_files

log = logging.getLogger(__name__)

_STORED_FLOATS = {TensorType.F32: mx.float32, TensorType.BF16: mx.bfloat16}
"""Floating-point type of a GGUF tensor; the scales of quantised ones are float16, as F16 is."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with everything else that its checkpoint says."""

    model: nn.Module
    tokenizer: TextTokenizer
    config: dict[str, Any]
    """In the terms of a Hugging Face `config.json`, whatever the format."""
    architecture: str
    """The `model_type`."""
    vocabulary: int
    """Tokens that have an embedding."""
    context_window: int
    """Tokens the model was made for."""
    chat_template: str | None
    """Jinja source."""
    special_tokens: dict[str, str]
    """`bos_token`, `eos_token` and so on, to their text."""
    generation_defaults: dict[str, float | int] = field(default_factory=dict[str, float | int])
    """Sampling fields of `generation_config.json`."""
    weight_bytes: int = 0


def load_model(path: Path, *, progress: Callable[[str], None] | None = None) -> LoadedModel:
    """Load a `.gguf` file or a checkpoint folder onto MLX's default device, ready to run.

    progress: called with a few words before each lengthy stage. Code in a checkpoint never runs. Raises ModelError
    when the checkpoint is missing, damaged or unsupported. Call it on the thread that will run the model.
    """
    report = progress or _say_nothing
    if path.is_dir():
        loaded = _load_folder(path, report)
    elif path.suffix.lower() == ".gguf":
        loaded = _load_gguf(path, report)
    elif path.exists():
        raise ModelError(f"{path}: is neither a .gguf file nor a checkpoint folder")
    else:
        raise ModelError(f"{path}: does not exist")
    mx.clear_cache()
    return loaded


def _say_nothing(_stage: str) -> None:
    return None


def _load_gguf(path: Path, report: Callable[[str], None]) -> LoadedModel:
    with GgufFile(path) as file:
        meta = file.metadata
        config = llama_config(file)
        report("building the tokenizer")
        tokenizer = gguf_tokenizer(meta)
        if tokenizer.vocab_size > config["vocab_size"]:
            raise ModelError(f"{path}: {tokenizer.vocab_size} tokens, but embeddings of {config['vocab_size']} only")
        report("reading weights")
        model = load_llama(file, config, _gguf_float_type(file))
        return LoadedModel(
            model=model,
            tokenizer=tokenizer,
            config=config,
            architecture=config["model_type"],
            vocabulary=config["vocab_size"],
            context_window=config["max_position_embeddings"],
            chat_template=meta.text("tokenizer.chat_template") if "tokenizer.chat_template" in meta else None,
            special_tokens=gguf_special_tokens(meta),
            weight_bytes=_weight_bytes(model),
        )


def _gguf_float_type(file: GgufFile) -> mx.Dtype:
    sizes: Counter[mx.Dtype] = Counter()
    for tensor in file.tensors.values():
        sizes[_STORED_FLOATS.get(tensor.type, mx.float16)] += tensor.nbytes
    quantised = any(quantised_bits(tensor.type) for tensor in file.tensors.values())
    return arrays.common_float_type(sizes, quantised=quantised)


def _load_folder(folder: Path, report: Callable[[str], None]) -> LoadedModel:
    written = sidecar.read_json(folder / "config.json")
    if written is None:
        raise ModelError(f"{folder}: has no config.json")
    written = sidecar.as_mapping(written)
    model_type = written.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{folder / 'config.json'}: names no model_type")
    generation = sidecar.as_mapping(sidecar.read_json(folder / "generation_config.json"))
    report("reading weights")
    model, config = _folder_weights(folder, written)
    arrays.unify_float_types(model)
    report("building the tokenizer")
    settings = sidecar.as_mapping(sidecar.read_json(folder / "tokenizer_config.json"))
    tokenizer = tokenizer_folder.folder_tokenizer(folder, settings, (written, generation))
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        config=config,
        architecture=model_type,
        vocabulary=_vocabulary(config, tokenizer),
        context_window=sidecar.context_window(config, settings),
        chat_template=tokenizer_folder.chat_template(folder, settings),
        special_tokens=tokenizer_folder.special_tokens(folder, settings),
        generation_defaults=sidecar.sampling_defaults(generation),
        weight_bytes=_weight_bytes(model),
    )


def _vocabulary(config: Mapping[str, Any], tokenizer: TextTokenizer) -> int:
    """Rows of the embedding, as the configuration that the weights were checked against has it."""
    for scope in (config, sidecar.as_mapping(config.get("text_config"))):
        if isinstance(size := scope.get("vocab_size"), int):
            return size
    return tokenizer.vocab_size


def _folder_weights(folder: Path, config: Mapping[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
    files = weight_files(folder)
    tensors = sum(check_weight_file(path) for path in files)
    _check_layer_count(folder, config, tensors)
    missing = missing_shards(folder)
    if missing:
        log.warning("%s: the weight index names files that are not there, such as %s", folder, missing[0])
    try:
        with as_model_files(folder, files) as model_folder:
            return mlxlm.load_folder(model_folder)
    except (Exception, SystemExit) as error:  # third-party code over contents of every kind; some of it exits
        hint = f" (missing from the folder: {', '.join(missing)})" if missing else ""
        raise ModelError(f"{folder}: {one_line(error)}{hint}") from error


def _check_layer_count(folder: Path, config: Mapping[str, Any], tensors: int) -> None:
    """Without this a config could ask for modules until memory ends, before anything is compared."""
    for scope in (config, sidecar.as_mapping(config.get("text_config"))):
        layers = scope.get("num_hidden_layers")
        if isinstance(layers, int) and layers > tensors:
            raise ModelError(f"{folder}: config.json claims {layers} layers, the weights hold {tensors} tensors")


def _weight_bytes(model: nn.Module) -> int:
    return sum(array.nbytes for array in arrays.parameters(model).values())
