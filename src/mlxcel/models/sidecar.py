"""The small JSON and text files beside a checkpoint's weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from mlxcel.models.errors import ModelError

_MAX_BYTES = 1 << 28
"""Largest file that is read; the indexes of the largest checkpoints have some ten megabytes."""

_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
_CONTEXT_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
)
_DEFAULT_CONTEXT = 4096
_UNLIMITED_CONTEXT = 1 << 31
"""Numbers from here on mean that nobody set a limit."""


def read_text(path: Path) -> str | None:
    """The text of a file; None when there is no such file. Raises ModelError when it cannot be read."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ModelError(f"{path}: is too large")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: is not UTF-8 text") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error


def read_json(path: Path) -> object:
    """The content of a JSON file; None when there is no such file. Raises ModelError when it cannot be read."""
    text = read_text(path)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is not valid JSON") from error


def as_mapping(value: object) -> Mapping[str, Any]:
    """`value` when it is a JSON object, else an empty one."""
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, float | int]:
    """The sampling fields of a `generation_config.json` that hold numbers. `do_sample: false` means temperature 0."""
    defaults: dict[str, float | int] = {}
    for name in _SAMPLING_FIELDS:
        value = generation_config.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            defaults[name] = value
    if generation_config.get("do_sample") is False:
        defaults["temperature"] = 0.0
    return defaults


def context_window(config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> int:
    """Tokens the model was made for, from the first field of its configuration that says so."""
    for scope in (config, as_mapping(config.get("text_config"))):
        for name in _CONTEXT_FIELDS:
            if (value := _length(scope.get(name))) is not None:
                return value
    return _length(tokenizer_config.get("model_max_length")) or _DEFAULT_CONTEXT


def _length(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _UNLIMITED_CONTEXT:
        return value
    return None
