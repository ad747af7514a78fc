"""Finding the native extension."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlxcel.kernels import native
from tests.kernels.test_decoder import build, make_model


def test_operations_built_for_another_mlx_are_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "module", lambda: SimpleNamespace(mlx_version="0.1.0"))
    with pytest.raises(native.NativeUnavailable, match=f"built for MLX 0.1.0, and this is {mx.__version__}"):
        native.operations_module.__wrapped__()


def test_one_thread_is_not_plural() -> None:
    assert [native.counted(number) for number in (1, 2)] == ["1 thread", "2 threads"]


def test_a_decoder_refuses_a_second_thread() -> None:
    decoder: Any = build(make_model("llama", "float32"))
    sequences = [decoder.open(), decoder.open()]
    refused: list[str] = []
    done = 0

    def run(sequence: int) -> None:
        nonlocal done
        for _ in range(30):
            try:
                decoder.step(np.zeros(40, np.int32), [(sequence, 40)], None)
                done += 1
            except RuntimeError as error:
                refused.append(str(error))

    threads = [threading.Thread(target=run, args=(sequence,)) for sequence in sequences]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done + len(refused) == 60
    assert set(refused) <= {"another thread is in a step of this decoder"}
    assert sum(decoder.length(sequence) for sequence in sequences) == 40 * done
