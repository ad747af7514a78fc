from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxcel.models.errors import ModelError
from mlxcel.models.gguf import GgufFile, Metadata
from mlxcel.models.tokenizer import TextTokenizer
from mlxcel.models.tokenizer_gguf import gguf_special_tokens, gguf_tokenizer
from tests.models import tiny

# Ids that llama.cpp gives for the default model's file.
GOLDEN = [
    ("Hello, world!", [19556, 28, 905, 17]),
    ("I'm you're they've we'll it's DON'T", [57, 5248, 346, 2316, 502, 3543, 392, 3060, 357, 506, 422, 2154, 23, 68]),
    ("def f(x):\n    return x**2\n\n\n\tpass", [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 16506, 197, 5467]),
    ("12 345 3.14 ²³ ٣٤", [33, 34, 216, 35, 36, 37, 216, 35, 30, 33, 36, 216, 19133, 39050, 216, 164, 113, 164, 114]),
    ("日本語中文한국", [23274, 115, 40993, 179, 120, 248, 28589, 29184, 33085, 246, 181, 130, 251]),
    (
        "emoji \U0001f917\U0001f469\u200d\U0001f467",
        [391, 33777, 15107, 114, 241, 10813, 235, 119, 321, 231, 10813, 235, 117],
    ),
    ("caf\xe9 na\xefve e\u0301", [83, 1939, 2756, 15486, 46494, 297, 151, 219]),
    ("   leading  and   runs  ", [256, 2899, 216, 284, 256, 7313, 256]),
    ("a\n\n\nb\r\n\r\nc\t\t d", [81, 1116, 198, 82, 7209, 198, 83, 1656, 287]),
    ("\xa0nbsp\u2003em\u3000ideo", [15442, 94, 32093, 321, 221, 391, 12109, 218, 8496]),
    ("<|im_start|>user\nHi<|im_end|>\n", [1, 4093, 198, 26843, 2, 198]),
    ("x<|endoftext|>y <|im_start|> z", [104, 0, 105, 216, 1, 1892]),
    ("<|im_end", [44, 108, 306, 79, 486]),
    ("\x00\x01\x7f ctl", [190, 191, 217, 265, 28478]),
    ("", []),
]


def metadata(**changes: Any) -> Metadata:
    """Metadata as the reader gives it. changes: `tokenizer.ggml.` keys; None leaves one out."""
    values = tiny.tokenizer_metadata()
    values |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Metadata(Path("model.gguf"), {key: value for key, value in values.items() if value is not None})


def pieces(tokenizer: TextTokenizer, text: str) -> list[bytes]:
    return [tokenizer.token_bytes(token_id) for token_id in tokenizer.encode(text)]


@pytest.mark.real_model
def test_same_ids_as_llama_cpp(default_model_path: Path) -> None:
    with GgufFile(default_model_path) as file:
        tokenizer = gguf_tokenizer(file.metadata)
        assert gguf_special_tokens(file.metadata)["eos_token"] == "<|im_end|>"
    for text, ids in GOLDEN:
        assert tokenizer.encode(text) == ids, text
    assert tokenizer.eos_token_ids == {0, 2}
    assert tokenizer.vocab_size == 49152


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["12345", " x", " '", "!!", "\n\n ", " y"]),
        ("smollm", ["1", "2", "3", "4", "5", " x", " '", "!!", "\n\n ", " y"]),
        ("llama-bpe", ["123", "45", " x", " '!!\n\n", " ", " y"]),
        ("llama3", ["123", "45", " x", " '!!\n\n", " ", " y"]),
        ("qwen2", ["1", "2", "3", "4", "5", " x", " '!!\n\n", " ", " y"]),
        ("default", ["123", "45", " x", " ", "'!!", "\n\n ", " y"]),
        (None, ["123", "45", " x", " ", "'!!", "\n\n ", " y"]),
    ],
)
def test_words_of_each_family(pre: str | None, words: list[str]) -> None:
    """Every run of characters can merge, so that the tokens show where the words end."""
    text = "12345 x '!!\n\n  y"
    alphabet = tiny.byte_alphabet()
    spelt = {chr(byte): character for byte, character in zip(range(256), _alphabet_in_byte_order(), strict=True)}
    tokens, merges = list(alphabet), []
    for word in dict.fromkeys([*words, "12345", " '", "!!\n\n"]):
        characters = [spelt[character] for character in word]
        for length in range(2, len(characters) + 1):
            joint = "".join(characters[:length])
            if joint not in tokens:
                tokens.append(joint)
                merges.append(f"{joint[:-1]} {joint[-1]}")
    meta = metadata(pre=pre, tokens=tokens, merges=merges, token_type=np.ones(len(tokens), np.int32), bos_token_id=None)
    assert pieces(gguf_tokenizer(meta), text) == [word.encode() for word in words]


def _alphabet_in_byte_order() -> list[str]:
    tokenizer = gguf_tokenizer(metadata())
    by_byte = {
        tokenizer.token_bytes(i): tokenizer.token_text(i) for i in range(len(tiny.SPECIAL), 256 + len(tiny.SPECIAL))
    }
    return [by_byte[bytes([byte])] for byte in range(256)]


def test_whole_words_come_first_in_llama_3() -> None:
    tokens = [*tiny.vocabulary(), "held"]
    types = np.ones(len(tokens), np.int32)
    whole = gguf_tokenizer(metadata(pre="llama-bpe", tokens=tokens, token_type=types))
    merged = gguf_tokenizer(metadata(pre="qwen2", tokens=tokens, token_type=types))
    assert pieces(whole, "held") == [b"held"]
    assert pieces(merged, "held") == [b"he", b"l", b"d"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"add_bos_token": True}, [0]),
        ({"add_bos_token": True, "add_eos_token": True}, [0, 2]),
        ({"add_bos_token": True, "bos_token_id": 10**6}, []),
        ({"pre": "llama-bpe"}, [0]),
        ({"pre": "llama-bpe", "add_bos_token": False}, []),
    ],
)
def test_ends_of_a_raw_prompt(changes: dict[str, Any], expected: list[int]) -> None:
    tokenizer = gguf_tokenizer(metadata(**changes))
    assert tokenizer.encode("", add_special=True) == expected
    assert tokenizer.encode("") == []


def test_token_types_decide_what_is_special() -> None:
    tokens = [*tiny.vocabulary(), "<tool>", "<unused>"]
    types = np.array([3] * len(tiny.SPECIAL) + [1] * (len(tokens) - len(tiny.SPECIAL) - 2) + [4, 5], np.int32)
    tokenizer = gguf_tokenizer(metadata(tokens=tokens, token_type=types))
    tool = tokens.index("<tool>")
    assert tokenizer.encode("<tool>", parse_special=False) == [tool]
    assert tokenizer.token_bytes(tool) == b"<tool>"
    assert len(tokenizer.encode("<unused>")) > 1
    assert tokenizer.token_bytes(0) == b""


def test_end_tokens_and_names() -> None:
    meta = metadata(eos_token_id=0, eot_token_id=40, unknown_token_id=1, padding_token_id=10**7)
    assert gguf_tokenizer(meta).eos_token_ids == {0, 2, 40}  # 2: <|im_end|>, a special token that ends turns
    assert gguf_special_tokens(meta) == {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|im_start|>",
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "t5"}, "tokenizer kind 't5' is not supported"),
        ({"model": None}, "lacks 'tokenizer.ggml.model'"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported"),
        ({"tokens": None}, "lacks 'tokenizer.ggml.tokens'"),
        ({"merges": None}, "lacks 'tokenizer.ggml.merges'"),
        ({"merges": ["ab"]}, "has the merge 'ab'"),
        ({"merges": ["a qqq"]}, "the tokenizer cannot be read: .*qqq"),
        ({"token_type": np.ones(3, np.int32)}, "tokens and 3 token types"),
        ({"token_type": np.ones(len(tiny.vocabulary()), np.float32)}, "token types .* not whole numbers"),
        ({"model": "llama"}, "lacks 'tokenizer.ggml.scores'"),
        ({"model": "llama", "scores": np.zeros(5, np.float32)}, "tokens and 5 scores"),
    ],
)
def test_metadata_that_cannot_be_used(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        gguf_tokenizer(metadata(**changes))


@pytest.fixture(scope="module")
def pieces_model() -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece BPE model, trained here on a few words."""
    model = io.BytesIO()
    sentences = ["the cat sat on the mat and that was that", "naïve café 日本語 text  with   spaces", "1 12 123 1234"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences * 5),
        model_writer=model,
        model_type="bpe",
        vocab_size=340,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def piece_metadata(model: sentencepiece.SentencePieceProcessor, **changes: Any) -> Metadata:
    ids = range(model.get_piece_size())

    def kind(piece: int) -> int:
        return 2 if model.is_unknown(piece) else 3 if model.is_control(piece) else 6 if model.is_byte(piece) else 1

    return metadata(
        **{
            "model": "llama",
            "tokens": [model.id_to_piece(piece) for piece in ids],
            "scores": np.array([model.get_score(piece) for piece in ids], np.float32),
            "token_type": np.array([kind(piece) for piece in ids], np.int32),
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
            **changes,
        }
    )


def test_same_ids_as_sentencepiece(pieces_model: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = gguf_tokenizer(piece_metadata(pieces_model))

    @settings(deadline=None)
    @given(st.text(st.sampled_from("the catsonm wïé日本x1234 \n🤗")))
    def check(text: str) -> None:
        ids = tokenizer.encode(text)
        assert ids == pieces_model.encode(text)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == (f" {text}" if text else "")
        assert tokenizer.decode(ids) == text

    check()
    assert tokenizer.encode("the", add_special=True)[0] == 1
    assert tokenizer.eos_token_ids == {2}


def test_sentencepiece_without_a_leading_space(pieces_model: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = gguf_tokenizer(piece_metadata(pieces_model, add_space_prefix=False, add_bos_token=False))
    for text in ("the cat", " the", "日本 🤗"):
        ids = tokenizer.encode(text, add_special=True)
        assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text
        assert tokenizer.decode(ids) == text


def test_overlong_pieces_cost_nothing(pieces_model: sentencepiece.SentencePieceProcessor) -> None:
    meta = piece_metadata(pieces_model)
    longest = "a" * 1_000_000
    meta = piece_metadata(
        pieces_model,
        tokens=[*meta.strings("tokenizer.ggml.tokens"), longest],
        scores=np.append(meta.numbers("tokenizer.ggml.scores"), np.float32(-1)),
        token_type=np.append(meta.numbers("tokenizer.ggml.token_type"), np.int32(1)),
    )
    assert len(gguf_tokenizer(meta).encode("aaa")) > 1
