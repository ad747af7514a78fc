from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from mlxcel.models.gguf import GgufFile
from mlxcel.models.text_cuts import LONGEST, PIECE, TextCuts
from mlxcel.models.tokenizer import TextTokenizer, wrap_sequences
from mlxcel.models.tokenizer_gguf import gguf_tokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CAMEL = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CJK_FIRST = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_MARKS_FIRST = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


def splits(*patterns: str) -> PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


SPLITS: dict[str, Callable[[], PreTokenizer]] = {
    "GPT-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "single digits": lambda: splits(r"\p{N}", _GPT2),
    "Llama 3": lambda: splits(_LLAMA3),
    "camel case": lambda: splits(_CAMEL),
    "CJK first": lambda: splits(*_CJK_FIRST),
    "marks first": lambda: splits(*_MARKS_FIRST),
}
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *"aZéθжאعअกのカ漢한 \n\t\r.,;:!?'’\"-_/=(){}0198",
                "  ",
                "\n\n",
                "'s",
                "'LL",
                "word",
                "<tag>",
                "e\u0301",
                "，",
                "。",
            ]
        ),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=60,
).map("".join)


def tokenizer_of(split: PreTokenizer | None, *added: AddedToken) -> Tokenizer:
    backend = Tokenizer(models.BPE({"a": 0}, []))
    if split is not None:
        backend.pre_tokenizer = split
    backend.add_tokens(list(added))
    return backend


def cuts_of(backend: Tokenizer) -> TextCuts:
    cuts = TextCuts.of(backend)
    assert cuts is not None
    return cuts


@pytest.mark.parametrize("name", SPLITS)
def test_pieces_have_the_words_of_the_whole(name: str) -> None:
    split = SPLITS[name]()
    cuts = cuts_of(tokenizer_of(split))

    def words(text: str) -> list[str]:
        return [word for word, _ in split.pre_tokenize_str(text)]

    @given(TEXTS)
    def check(text: str) -> None:
        pieces = list(cuts.pieces(text, 1))
        assert "".join(pieces) == text
        assert list(itertools.chain.from_iterable(map(words, pieces))) == words(text)

    check()
    assert len(list(cuts.pieces("some words, and 12 more.", 1))) > 3


def test_only_spaces_end_words_that_spaces_split() -> None:
    cuts = cuts_of(tokenizer_of(splits(r"\s+")))
    assert list(cuts.pieces("a,b.c 1,2\nz", 1)) == ["a,b.c", " 1,2", "\nz"]


@pytest.mark.parametrize(
    "backend",
    [
        tokenizer_of(None),
        tokenizer_of(pre_tokenizers.ByteLevel(add_prefix_space=True)),
        tokenizer_of(splits(r"(?<=a) | ?\p{L}+")),
        tokenizer_of(splits(r"^x|\b\p{L}+")),
    ],
)
def test_no_place_is_known_to_be_safe(backend: Tokenizer) -> None:
    assert TextCuts.of(backend) is None


def sentencepiece(*, prepend: bool, split: PreTokenizer | None = None, piece: str = "▁a") -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁ab1\n", "▁▁", "ab", "▁ab", "▁▁a", piece]
    merges = [("▁", "▁"), ("a", "b"), ("▁", "ab"), ("▁▁", "a"), (piece[:-1], piece[-1])]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prepend else spaces
    if split is not None:
        backend.pre_tokenizer = split
    backend.add_tokens([AddedToken("<x>"), AddedToken("<y>", lstrip=True, rstrip=True, normalized=False)])
    return backend


@pytest.mark.parametrize(
    "backend",
    [
        sentencepiece(prepend=False),
        sentencepiece(prepend=True),
        sentencepiece(prepend=False, split=pre_tokenizers.Split(" ", "merged_with_previous")),
        sentencepiece(prepend=False, split=pre_tokenizers.Metaspace(prepend_scheme="always")),
        sentencepiece(prepend=False, split=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)),
    ],
)
def test_pieces_of_sentencepiece_have_the_ids_of_the_whole(backend: Tokenizer) -> None:
    cuts = cuts_of(backend)

    def ids(text: str) -> list[int]:
        return backend.encode(text).ids

    @given(st.lists(st.sampled_from([*"aab  1\n▁é", "ab", "<x>", "<y>"]), max_size=40).map("".join))
    def check(text: str) -> None:
        assert list(itertools.chain.from_iterable(map(ids, cuts.pieces(text, 1)))) == ids(text)

    check()
    assert len(list(cuts.pieces("a b a b", 1))) > 1


def test_pieces_that_reach_across_words() -> None:
    assert TextCuts.of(sentencepiece(prepend=False, piece="b▁")) is None


def test_a_normalizer_that_changes_beginnings() -> None:
    backend = tokenizer_of(SPLITS["GPT-2"]())
    backend.normalizer = normalizers.NFC()
    assert TextCuts.of(backend) is not None
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("_")])
    assert TextCuts.of(backend) is None


def test_added_tokens_stay_whole_and_keep_the_spaces_they_take() -> None:
    added = [AddedToken("mark one", rstrip=True), AddedToken("a,b", lstrip=True), AddedToken("<|x|>", special=True)]
    cuts = cuts_of(tokenizer_of(SPLITS["GPT-2"](), *added))
    for text in ("w mark one  c w", "w c  a,b w", "w x a,b x w", "w <|x|> w"):
        token = next(token.content for token in added if token.content in text)
        pieces = [piece for piece in cuts.pieces(text, 1) if token in piece]
        assert len(pieces) == 1
        assert pieces[0] == text or not pieces[0].startswith(token)


def test_a_word_without_end_is_cut_all_the_same() -> None:
    cuts = cuts_of(tokenizer_of(SPLITS["GPT-2"](), AddedToken("<|x|>", special=True)))
    for text in ("a" * 3 * LONGEST, "<|x|>" * LONGEST):
        pieces = list(cuts.pieces(text))
        assert "".join(pieces) == text
        assert all(len(piece) <= PIECE + LONGEST + 5 for piece in pieces)
        assert all(piece.startswith("<|x|>") for piece in pieces) or text[0] == "a"


@pytest.mark.real_model
def test_long_texts_have_the_ids_of_the_whole(default_model_path: Path) -> None:
    with GgufFile(default_model_path) as file:
        tokenizer = gguf_tokenizer(file.metadata)
    backend = Tokenizer.from_str(tokenizer.to_json())
    prose = "The quick brown fox (aged 12) isn't lazy; it's 3.14 % faster.\n\n\tdef f(x):  return x**2 漢字，かな。 "
    chat = f"<|im_start|>user\n{prose * 3}<|im_end|>\n" * 200
    for text in (prose * 500, chat, "1234567," * 9000, "aé" * 9000, "🙂 \u200d" * 9000):
        assert len(text) > PIECE
        assert tokenizer.encode(text) == backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special=True) == backend.encode(text).ids
    wrap_sequences(backend, "<|im_start|>", "<|im_end|>")
    assert TextTokenizer(backend, []).encode(chat, add_special=True) == [1, *tokenizer.encode(chat), 2]
