from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mlxcel.models import arrays
from mlxcel.models.errors import ModelError
from mlxcel.models.gguf import GgufFile
from mlxcel.models.load import LoadedModel, load_model
from mlxcel.models.mlxlm import make_prompt_cache
from tests.models import tiny

TOKENS = mx.array([[5, 40, 262, 17, 3]])


def logits(loaded: LoadedModel) -> np.ndarray:
    model: Any = loaded.model
    return np.array(model(TOKENS).astype(mx.float32))


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_folder(tmp_path / "checkpoint")


@pytest.fixture
def gguf_path(tmp_path: Path) -> Path:
    return tiny.write_gguf(tmp_path / "model.gguf")


def test_a_gguf_file_and_a_folder_of_the_same_model(gguf_path: Path, folder: Path) -> None:
    stages: list[str] = []
    file, checkpoint = load_model(gguf_path, progress=stages.append), load_model(folder, progress=stages.append)
    np.testing.assert_array_equal(logits(file), logits(checkpoint))
    text = "hello <|im_end|> 123"
    assert file.tokenizer.encode(text) == checkpoint.tokenizer.encode(text)
    for loaded in (file, checkpoint):
        assert (loaded.architecture, loaded.context_window) == ("llama", 256)
        assert loaded.weight_bytes == sum(values.nbytes for values in tiny.weights(tiny.CONFIG).values())
        assert loaded.tokenizer.eos_token_ids == {0, 2}
    assert file.chat_template == "{{ messages[0].content }}"
    assert file.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}
    assert set(stages) == {"reading weights", "building the tokenizer"}


def test_what_a_folder_says_beside_its_weights(folder: Path) -> None:
    edit(folder / "config.json", eos_token_id=9)
    edit(folder / "generation_config.json", eos_token_id=[11], do_sample=False, temperature=0.9, top_k=7)
    edit(folder / "tokenizer_config.json", bos_token="<|im_start|>", chat_template="t")
    loaded = load_model(folder)
    assert loaded.tokenizer.eos_token_ids == {0, 2, 9, 11}
    assert loaded.generation_defaults == {"temperature": 0.0, "top_k": 7}
    assert loaded.special_tokens == {"bos_token": "<|im_start|>"}
    assert loaded.chat_template == "t"
    assert loaded.config["hidden_size"] == 64


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_quantised_folders(folder: Path, dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = load_model(folder).model
    model.set_dtype(dtype)
    nn.quantize(
        model,
        32,
        4,
        class_predicate=lambda path, module: (
            hasattr(module, "to_quantized") and {"group_size": 32, "bits": 8 if "embed" in path else 4}
        ),
    )
    mx.save_safetensors(str(folder / "model.safetensors"), arrays.parameters(model))
    edit(folder / "config.json", quantization={"group_size": 32, "bits": 4})
    for on_cpu, expected in ((True, mx.float32), (False, dtype)):
        monkeypatch.setattr(arrays, "on_cpu", lambda on_cpu=on_cpu: on_cpu)
        loaded: Any = load_model(folder)
        assert {array.dtype for array in arrays.parameters(loaded.model).values()} == {mx.uint32, expected}
        assert (loaded.model.model.embed_tokens.bits, loaded.model.model.layers[0].mlp.up_proj.bits) == (8, 4)
        assert loaded.model(TOKENS).dtype == expected


@pytest.mark.parametrize(
    ("kind", "expected"), [("F16", mx.float16), ("BF16", mx.bfloat16), ("F32", mx.float32), ("Q4_0", mx.float32)]
)
def test_float_type_of_gguf_files_on_a_cpu(
    tmp_path: Path, kind: str, expected: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "on_cpu", lambda: True)
    model: Any = load_model(tiny.write_gguf(tmp_path / "m.gguf", kind=kind)).model
    assert model(TOKENS).dtype == expected


def test_quantised_gguf_files_stay_in_half_precision_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "on_cpu", lambda: False)
    model: Any = load_model(tiny.write_gguf(tmp_path / "m.gguf", kind="Q4_1")).model
    assert model(TOKENS).dtype == mx.float16


def test_weights_under_another_name(folder: Path) -> None:
    expected = logits(load_model(folder))
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    np.testing.assert_array_equal(logits(load_model(folder)), expected)


def test_a_stale_index_is_one_warning(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    edit(folder / "model.safetensors.index.json", weight_map={"a": "model-00001-of-00002.safetensors", "b": "gone"})
    with caplog.at_level(logging.WARNING):
        load_model(folder)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "gone" in caplog.text


def test_a_missing_shard_is_named(folder: Path) -> None:
    weights = tiny.weights(tiny.CONFIG)
    halves = list(weights)[::2], list(weights)[1::2]
    for number, names in enumerate(halves):
        part = {name: mx.array(weights[name]) for name in names}
        mx.save_safetensors(str(folder / f"model-{number}.safetensors"), part)
    (folder / "model.safetensors").unlink()
    load_model(folder)
    edit(
        folder / "model.safetensors.index.json",
        weight_map={name: f"model-{number}.safetensors" for number, names in enumerate(halves) for name in names},
    )
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"missing from the folder: model-1\.safetensors"):
        load_model(folder)


def test_a_damaged_shard_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: is cut short"):
        load_model(folder)


def test_code_in_a_checkpoint_does_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    edit(folder / "config.json", model_file="evil.py", auto_map={"AutoModel": "evil.Model"})
    with pytest.raises(ModelError, match="evil"):
        load_model(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "no_such_model"}, "no_such_model not supported"),
        ({"model_type": "cache"}, "cache"),
        ({"model_type": None}, "names no model_type"),
        ({"num_hidden_layers": 1 << 40}, "claims 1099511627776 layers"),
        ({"num_hidden_layers": 3}, "Missing 9 parameters"),
        ({"hidden_size": 128}, r"shape|dimension"),
        ({"num_attention_heads": "four"}, str),
    ],
)
def test_configurations_that_do_not_work(folder: Path, changes: dict[str, Any], reason: Any) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError, match=reason if isinstance(reason, str) else "checkpoint") as caught:
        load_model(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_no_checkpoint(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.txt").touch()
    for path, reason in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "none.gguf", "cannot be opened"),
        (tmp_path / "a.txt", "is neither"),
        (tmp_path, r"has no config\.json"),
    ):
        with pytest.raises(ModelError, match=reason):
            load_model(path)
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json: is not valid JSON"):
        load_model(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="names no model_type"):
        load_model(folder)


def test_an_unknown_architecture_is_named_before_anything_else(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", general__architecture="other", tokenizer__ggml__pre="other-words")
    with pytest.raises(ModelError, match="architecture 'other'"):
        load_model(path)


def test_more_tokens_than_embeddings(tmp_path: Path) -> None:
    tokens = [*tiny.vocabulary(), "more"]
    types = np.ones(len(tokens), np.int32)
    path = tiny.write_gguf(tmp_path / "m.gguf", tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=types)
    with pytest.raises(ModelError, match="embeddings of"):
        load_model(path)


def test_damaged_gguf_files_are_always_a_model_error(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "m.gguf", {**tiny.CONFIG, "num_hidden_layers": 1}, kind="Q8_0")
    whole = path.read_bytes()
    with GgufFile(path) as file:
        start = min(tensor.offset for tensor in file.tensors.values())
    flips = st.lists(st.tuples(st.integers(0, start - 1), st.integers(0, 255)), min_size=1, max_size=4)

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(flips, st.none() | st.integers(0, len(whole)))
    def check(changes: list[tuple[int, int]], length: int | None) -> None:
        data = bytearray(whole)
        for position, value in changes:
            data[position] = value
        path.write_bytes(data[:length])
        with suppress(ModelError):
            loaded = load_model(path)
            loaded.tokenizer.decode(loaded.tokenizer.encode("hello é"))

    check()


@pytest.mark.real_model
def test_the_default_model_answers_and_leaves_nothing_behind(default_model_path: Path) -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    loaded = load_model(default_model_path)
    grown = process.memory_info().rss - before
    assert grown < 250e6
    assert not [entry for entry in process.open_files() if entry.path == str(default_model_path)]
    assert not [entry for entry in process.memory_maps() if entry.path == str(default_model_path)]
    assert (loaded.architecture, loaded.context_window) == ("llama", 8192)
    assert loaded.weight_bytes == pytest.approx(115e6, rel=0.01)
    model: Any = loaded.model
    cache = make_prompt_cache(loaded.model)
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    step, reply = loaded.tokenizer.encode(prompt), []
    while not reply or reply[-1] not in loaded.tokenizer.eos_token_ids:
        assert len(reply) < 16
        row = model(mx.array([step]), cache=cache)[0, -1]
        assert math.isfinite(row.max().item())
        step = [int(mx.argmax(row).item())]
        reply += step
    assert loaded.tokenizer.decode(reply) == "The capital of France is Paris."
