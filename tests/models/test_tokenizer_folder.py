from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import sentencepiece

from mlxcel.models import tokenizer_folder
from mlxcel.models.errors import ModelError
from mlxcel.models.sidecar import as_mapping, read_json
from mlxcel.models.tokenizer import TextTokenizer
from tests.models import tiny


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def settings_of(folder: Path) -> Mapping[str, Any]:
    return as_mapping(read_json(folder / "tokenizer_config.json"))


def folder_tokenizer(folder: Path, configs: Iterable[Mapping[str, Any]] = ()) -> TextTokenizer:
    return tokenizer_folder.folder_tokenizer(folder, settings_of(folder), configs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.write_tokenizer(tmp_path)
    return tmp_path


def test_end_tokens_are_the_union_of_all_that_name_one(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"eos_token": {"content": "hell"}})
    config = {"eos_token_id": 7, "text_config": {"eos_token_id": 8}}
    generation = {"eos_token_id": [9, 10, True, "x", None]}
    ends = folder_tokenizer(folder, (config, generation, {"eos_token_id": None})).eos_token_ids
    hell = tiny.vocabulary().index("hell")
    assert ends == {7, 8, 9, 10, hell, 0, 2}  # 0 and 2: special tokens that end turns


def test_special_tokens_by_name(folder: Path) -> None:
    write(folder, "special_tokens_map.json", {"bos_token": "old", "pad_token": {"content": "<pad>"}})
    write(
        folder,
        "tokenizer_config.json",
        {"bos_token": "<|im_start|>", "eos_token": None, "add_bos_token": True, "image_token": "<image>"},
    )
    assert tokenizer_folder.special_tokens(folder, settings_of(folder)) == {
        "bos_token": "<|im_start|>",
        "pad_token": "<pad>",
        "image_token": "<image>",
    }


def test_tokens_named_as_special_are_special(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"additional_special_tokens": ["hello", {"content": "the"}, "none"]})
    tokenizer = folder_tokenizer(folder)
    assert tokenizer.token_bytes(tiny.vocabulary().index("hello")) == b""
    assert tokenizer.decode(tokenizer.encode("hello you")) == " you"


def test_added_tokens_that_only_the_settings_declare(folder: Path) -> None:
    count = len(tiny.vocabulary())
    declared = {
        str(count + 1): {"content": "<tool>", "special": False},
        str(count): {"content": "<extra>", "special": True},
        "0": {"content": "<|endoftext|>", "special": True},
        "5000": {"content": ""},
    }
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": declared})
    tokenizer = folder_tokenizer(folder)
    assert tokenizer.encode("<extra><tool>") == [count, count + 1]
    assert (tokenizer.token_bytes(count), tokenizer.token_bytes(count + 1)) == (b"", b"<tool>")
    assert tokenizer.vocab_size == count + 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, []),
        ({"add_bos_token": True, "bos_token": "<|im_start|>"}, [1]),
        (
            {"add_bos_token": True, "add_eos_token": True, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
            [1, 2],
        ),
        ({"add_bos_token": True}, []),
        ({"add_bos_token": True, "bos_token": "<not there>"}, []),
        ({"add_bos_token": False, "bos_token": "<|im_start|>"}, []),
    ],
)
def test_ends_of_a_raw_prompt(folder: Path, settings: dict[str, Any], expected: list[int]) -> None:
    write(folder, "tokenizer_config.json", settings)
    assert folder_tokenizer(folder).encode("", add_special=True) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"tokenizer_config.json": {"chat_template": "a"}}, "a"),
        ({"chat_template.jinja": "j", "tokenizer_config.json": {"chat_template": "a"}}, "j"),
        ({"chat_template.json": {"chat_template": "b"}, "tokenizer_config.json": {}}, "b"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
                }
            },
            "d",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "r"}, 3]}}, None),
        ({"tokenizer_config.json": {"chat_template": 3}}, None),
    ],
)
def test_chat_template(tmp_path: Path, files: dict[str, Any], expected: str | None) -> None:
    for name, content in files.items():
        write(tmp_path, name, content)
    assert tokenizer_folder.chat_template(tmp_path, settings_of(tmp_path)) == expected


def test_without_tokenizer_json_transformers_converts(tmp_path: Path) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the cat sat on the mat and that was that"] * 5),
        model_writer=model,
        model_type="bpe",
        vocab_size=300,
        byte_fallback=True,
        minloglevel=2,
    )
    (tmp_path / "tokenizer.model").write_bytes(model.getvalue())
    write(tmp_path, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "eos_token": "</s>"})
    write(tmp_path, "config.json", {"model_type": "llama"})
    tokenizer = folder_tokenizer(tmp_path)
    ids = tokenizer.encode("the cat")
    assert ids == sentencepiece.SentencePieceProcessor(model_proto=model.getvalue()).encode("the cat")
    assert tokenizer.decode(ids) == "the cat"
    assert tokenizer.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "{"),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": {"content": "y"}}}),
    ],
)
def test_damaged_files(folder: Path, name: str, content: Any) -> None:
    write(folder, name, content)
    with pytest.raises(ModelError, match=str(folder)):
        folder_tokenizer(folder)


def test_nothing_to_build_a_tokenizer_from(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=str(tmp_path)):
        folder_tokenizer(tmp_path)
