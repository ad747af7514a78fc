"""llama.cpp's decoder without its server: the C interface of the `llama-cpp-python` package, one batch at a time.

For its best speed the package must be built for this processor; `make bench` does so. By hand:

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install --no-binary llama-cpp-python llama-cpp-python
"""

# The package is made of ctypes, whose objects the type checker cannot follow.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as api

UBATCH = 512
"""Tokens llama.cpp computes at a time."""


class LlamaCppError(RuntimeError):
    """A call of llama.cpp failed."""


@api.llama_log_callback
def _keep_silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    return None


def start() -> str:
    """Initialise the library; returns what its build and this processor have in common. Call it once."""
    api.llama_log_set(_keep_silent, ctypes.c_void_p(0))
    api.llama_backend_init()
    return api.llama_print_system_info().decode().strip()


def requantise(source: Path, target: Path, *, threads: int) -> Path:
    """Write the GGUF file `source` as Q4_0 to `target`, unless it is there and newer."""
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    params = api.llama_model_quantize_default_params()
    params.ftype = api.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    params.nthread = threads
    if api.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.pointer(params)) != 0:
        raise LlamaCppError(f"{source} cannot be quantised again")
    partial.replace(target)
    return target


class LlamaCppModel:
    """The weights of a GGUF file, in the arrangement llama.cpp finds best (its defaults: mapped and repacked)."""

    def __init__(self, path: Path) -> None:
        self.pointer: Any = api.llama_model_load_from_file(str(path).encode(), api.llama_model_default_params())
        if not self.pointer:
            raise LlamaCppError(f"{path} cannot be loaded")
        vocabulary: Any = api.llama_model_get_vocab(self.pointer)
        self.vocabulary: int = api.llama_vocab_n_tokens(vocabulary)


class LlamaCppDecoder:
    """Some sequences of equal length under a model, with their cache."""

    def __init__(self, model: LlamaCppModel, *, threads: int, rows: int, context: int, flash_attention: bool) -> None:
        self._model = model
        params = api.llama_context_default_params()
        params.n_ctx = rows * context
        params.n_batch = params.n_ubatch = UBATCH
        params.n_seq_max = rows
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = int(flash_attention)
        params.no_perf = True
        self._context: Any = api.llama_init_from_model(model.pointer, params)
        if not self._context:
            raise LlamaCppError("no context can be made")
        self._memory: Any = api.llama_get_memory(self._context)
        self._batch = _Batch(UBATCH)
        self._prompts: list[list[int]] = []
        self._lengths: list[int] = []

    def close(self) -> None:
        """Give the cache back."""
        self._batch.close()
        api.llama_free(self._context)

    def fill(self, prompts: Sequence[Sequence[int]]) -> None:
        """One sequence for each prompt, holding that prompt. When they are those of the last time, what came after
        them is dropped, and they need not run again."""
        if self._prompts == prompts:
            for row, prompt in enumerate(prompts):
                api.llama_memory_seq_rm(self._memory, row, len(prompt), -1)
        else:
            api.llama_memory_clear(self._memory, False)
            for row, prompt in enumerate(prompts):
                self._append(prompt, row)
        self._remember(prompts)

    def prefill(self, prompt: Sequence[int]) -> int:
        """Drop everything, run `prompt` through the model; returns the best next token."""
        api.llama_memory_clear(self._memory, False)
        self._append(prompt, 0)
        self._remember([prompt])
        return self._best(-1)

    def _remember(self, prompts: Sequence[Sequence[int]]) -> None:
        self._prompts = [list(prompt) for prompt in prompts]
        self._lengths = [len(prompt) for prompt in prompts]

    def step(self, tokens: Sequence[int]) -> list[int]:
        """Append one token to each sequence; returns the best next token of each."""
        rows = range(len(tokens))
        self._batch.set(tokens, self._lengths, rows, rows)
        self._decode()
        self._lengths = [length + 1 for length in self._lengths]
        return [self._best(row) for row in rows]

    def _append(self, prompt: Sequence[int], row: int) -> None:
        for start in range(0, len(prompt), UBATCH):
            piece = prompt[start : start + UBATCH]
            positions = range(start, start + len(piece))
            self._batch.set(piece, positions, [row] * len(piece), [len(piece) - 1])
            self._decode()

    def _decode(self) -> None:
        status = api.llama_decode(self._context, self._batch.struct)
        if status != 0:
            raise LlamaCppError(f"llama_decode returned {status}")

    def _best(self, output: int) -> int:
        pointer = api.llama_get_logits_ith(self._context, output)
        return int(np.ctypeslib.as_array(pointer, (self._model.vocabulary,)).argmax())


class _Batch:
    """A `llama_batch` whose arrays are seen by numpy, so that filling it takes no time worth measuring."""

    def __init__(self, capacity: int) -> None:
        self.struct: Any = api.llama_batch_init(capacity, 0, 1)
        shape = (capacity,)
        self._tokens = np.ctypeslib.as_array(self.struct.token, shape)
        self._positions = np.ctypeslib.as_array(self.struct.pos, shape)
        self._wanted = np.ctypeslib.as_array(self.struct.logits, shape)
        self._sequences = [np.ctypeslib.as_array(self.struct.seq_id[i], (1,)) for i in range(capacity)]
        np.ctypeslib.as_array(self.struct.n_seq_id, shape)[:] = 1

    def set(
        self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int], wanted: Sequence[int]
    ) -> None:
        """The batch's tokens; `wanted` are the places whose logits are computed."""
        count = len(tokens)
        self.struct.n_tokens = count
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        for place, sequence in enumerate(sequences):
            self._sequences[place][0] = sequence
        self._wanted[:count] = 0
        self._wanted[list(wanted)] = 1

    def close(self) -> None:
        """Give the memory back."""
        api.llama_batch_free(self.struct)
