from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlxcel.models.errors import ModelError
from mlxcel.models.tokenizer import Spelling, TextTokenizer, library_errors, register, turn_end_ids
from tests.models import tiny


def byte_level() -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(tiny.vocabulary())}
    backend = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in tiny.MERGES]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tiny.SPECIAL])
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return backend


def sentencepiece(*, prefix: bool = True) -> Tokenizer:
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "é", "▁a", "日"]
    backend = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", "a")], unk_token="<unk>", byte_fallback=True)
    )
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<unk>", "<s>")])
    return backend


def metaspace() -> Tokenizer:
    backend = sentencepiece()
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    return backend


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"))


@pytest.mark.parametrize(
    ("build", "prefix"),
    [(byte_level, ""), (sentencepiece, " "), (lambda: sentencepiece(prefix=False), ""), (metaspace, " ")],
)
def test_bytes_of_the_tokens_are_the_bytes_of_the_text(build: Callable[[], Tokenizer], prefix: str) -> None:
    tokenizer = TextTokenizer(build(), [])

    @given(TEXTS)
    def check(text: str) -> None:
        ids = tokenizer.encode(text, parse_special=False)
        raw = b"".join(map(tokenizer.token_bytes, ids))
        # Metaspace, unlike Prepend, leaves a text alone that begins with a space.
        assert raw in ((prefix + text if text else "").encode(), text.encode() if text.startswith(" ") else None)
        assert tokenizer.decode(ids) in (text, text.removeprefix(" "))

    check()


def test_special_tokens_are_parsed_or_not() -> None:
    tokenizer = TextTokenizer(byte_level(), [2])
    assert tokenizer.encode("the<|im_end|>") == [*tokenizer.encode("the"), 2]
    plain = tokenizer.encode("the<|im_end|>", parse_special=False)
    assert 2 not in plain
    assert tokenizer.decode(plain) == "the<|im_end|>"
    assert 2 in tokenizer.encode("<|im_end|>")  # the switch does not stick


def test_special_tokens_add_nothing_to_the_text_and_others_do() -> None:
    tokenizer = TextTokenizer(byte_level(), [2])
    ids = tokenizer.encode("<|im_start|>hello <think>é<|im_end|>")
    assert tokenizer.decode(ids) == "hello <think>é"
    assert tokenizer.token_bytes(1) == b""
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"<think>"
    assert tokenizer.token_text(1) == "<|im_start|>"
    assert tokenizer.token_id("<think>") == tokenizer.vocab_size - 1


def test_ids_outside_the_vocabulary() -> None:
    tokenizer = TextTokenizer(byte_level(), [2, -1, 10**9])
    assert tokenizer.eos_token_ids == {2}
    for token_id in (-1, tokenizer.vocab_size, 1 << 40):
        assert tokenizer.token_bytes(token_id) == b""
        assert tokenizer.token_text(token_id) == ""
    assert tokenizer.decode([tokenizer.vocab_size, 1 << 31]) == ""
    assert tokenizer.token_id("no such token") is None


def test_bytes_that_are_no_utf8_decode_to_the_replacement_character() -> None:
    tokenizer = TextTokenizer(byte_level(), [])
    ids = tokenizer.encode("é")
    assert len(ids) == 2
    assert tokenizer.decode(ids[:1]) == "\ufffd"


def test_a_token_outside_the_byte_alphabet_stands_for_itself() -> None:
    backend = Tokenizer(models.BPE({"日本": 0}, []))
    backend.decoder = decoders.ByteLevel()
    assert TextTokenizer(backend, []).token_bytes(0) == "日本".encode()


@pytest.mark.parametrize(("text", "read"), [("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "😀"), ("\udfff", "\ufffd")])
def test_lone_surrogates(text: str, read: str) -> None:
    tokenizer = TextTokenizer(byte_level(), [])
    assert tokenizer.decode(tokenizer.encode(text)) == read


def test_truncation_and_padding_of_the_checkpoint_are_off() -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    assert len(TextTokenizer(backend, []).encode("the 123 the 123")) == len(
        TextTokenizer(byte_level(), []).encode("the 123 the 123")
    )


def test_spelling_is_told_apart() -> None:
    plain = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    for backend, spelling in (
        (byte_level(), Spelling.BYTE_LEVEL),
        (sentencepiece(), Spelling.SENTENCEPIECE),
        (metaspace(), Spelling.SENTENCEPIECE),
        (plain, Spelling.PLAIN),
    ):
        assert TextTokenizer(backend, []).spelling is spelling


def test_word_pieces_use_the_decoder_of_the_library() -> None:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "hell": 1, "##o": 2, "you": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    tokenizer = TextTokenizer(backend, [])
    assert tokenizer.decode([*tokenizer.encode("hello you"), 99]) == "hello you"
    assert tokenizer.token_bytes(3) == b"you"
    assert tokenizer.token_bytes(99) == b""


def test_json_form_rebuilds_the_tokenizer() -> None:
    tokenizer = TextTokenizer(byte_level(), [])
    text = "hello <|im_end|> 123 é"
    assert Tokenizer.from_str(tokenizer.to_json()).encode(text).ids == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("special", "plain", "ends"),
    [
        (["<|im_end|>", "<|im_start|>"], [], {"<|im_end|>"}),
        (["<|eot_id|>", "<|end_of_text|>"], ["<|im_end|>"], {"<|eot_id|>", "<|end_of_text|>"}),
        (["<|end|>"], [], {"<|end|>"}),
        (["<|end|>", "<|return|>", "<|call|>"], [], {"<|return|>", "<|call|>"}),
        (["<|return|>", "<|call|>"], [], {"<|return|>", "<|call|>"}),
    ],
)
def test_ends_of_a_turn(special: list[str], plain: list[str], ends: set[str]) -> None:
    backend = Tokenizer(models.BPE())
    register(backend, [AddedToken(token, special=True) for token in special])
    register(backend, [AddedToken(token, special=False) for token in plain])
    assert {backend.id_to_token(token_id) for token_id in turn_end_ids(backend)} == ends


def test_a_panic_inside_the_library_is_an_ordinary_error(tmp_path: Path) -> None:
    tiny.write_tokenizer(tmp_path)
    damaged: dict[str, Any] = json.loads((tmp_path / "tokenizer.json").read_text())
    damaged["model"]["continuing_subword_prefix"] = "a long prefix that no token has"
    with pytest.raises(ModelError, match="cannot be read"), library_errors(tmp_path):
        Tokenizer.from_str(json.dumps(damaged))
