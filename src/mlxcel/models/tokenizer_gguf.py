"""Tokenizers from the metadata of GGUF files (keys `tokenizer.ggml.*`).

Two kinds exist here: `gpt2`, byte-level BPE whose merges are in the file, and `llama`, SentencePiece BPE whose
merges follow from the scores of its pieces.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from mlxcel.models.errors import ModelError
from mlxcel.models.gguf import Metadata
from mlxcel.models.tokenizer import SPACE_MARK, TextTokenizer, library_errors, register, turn_end_ids, wrap_sequences

_MAX_PIECE_CHARACTERS = 256
"""Longest SentencePiece piece whose merges are worked out; real ones have a few dozen at most."""

# How text is cut into words before BPE, as the models of each family publish it in their own tokenizer.json.
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_WORD_PATTERNS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2_WORDS,),
    "smollm": (r"\p{N}", _GPT2_WORDS),
    "llama-bpe": (_LLAMA3_WORDS,),
    "qwen2": (_QWEN2_WORDS,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
_SAME_WORDS = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}
_LLAMA3 = "llama-bpe"
"""The family whose words that are tokens as they stand are not merged, and whose prompts begin with BOS."""

_TOKEN_NAMES = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",  # spelt so in the format
    "mask_token": "mask_token_id",
}
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class _TokenType(enum.IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def gguf_tokenizer(meta: Metadata) -> TextTokenizer:
    """The tokenizer of a GGUF file. Raises ModelError when it is damaged or of a kind that is not supported."""
    kind = meta.text("tokenizer.ggml.model")
    tokens = meta.strings("tokenizer.ggml.tokens")
    types = _token_types(meta, len(tokens))
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    with library_errors(meta.path):
        if kind == "gpt2":
            backend = _byte_level(meta, vocabulary)
        elif kind == "llama":
            backend = _sentencepiece(meta, tokens, vocabulary, types)
        else:
            raise ModelError(f"{meta.path}: the tokenizer kind {kind!r} is not supported")
        _add_special(backend, tokens, types)
        _add_sequence_ends(backend, meta, tokens, with_bos=kind == "llama" or _word_family(meta) == _LLAMA3)
        ends = {token_id for key in _END_KEYS if (token_id := _token_id(meta, key, tokens)) is not None}
        return TextTokenizer(backend, ends | turn_end_ids(backend), sentencepiece=kind == "llama")


def gguf_special_tokens(meta: Metadata) -> dict[str, str]:
    """The tokens that templates name (`bos_token` and so on) with their text."""
    tokens = meta.strings("tokenizer.ggml.tokens")
    return {
        name: tokens[token_id]
        for name, key in _TOKEN_NAMES.items()
        if (token_id := _token_id(meta, key, tokens)) is not None
    }


def _byte_level(meta: Metadata, vocabulary: dict[str, int]) -> Tokenizer:
    family = _word_family(meta)
    patterns = _WORD_PATTERNS.get(family)
    if patterns is None:
        raise ModelError(f"{meta.path}: the pre-tokenizer {family!r} is not supported")
    merges = [_merge(meta.path, line) for line in meta.strings("tokenizer.ggml.merges")]
    backend = Tokenizer(BPE(vocabulary, merges, ignore_merges=family == _LLAMA3))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _word_family(meta: Metadata) -> str:
    name = meta.text("tokenizer.ggml.pre", "default")
    return _SAME_WORDS.get(name, name)


def _merge(path: Path, line: str) -> tuple[str, str]:
    left, separator, right = line.partition(" ")
    if not separator:
        raise ModelError(f"{path}: the tokenizer has the merge {line!r}")
    return left, right


def _sentencepiece(meta: Metadata, tokens: list[str], vocabulary: dict[str, int], types: list[int]) -> Tokenizer:
    scores = meta.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{meta.path}: the tokenizer has {len(tokens)} tokens and {len(scores)} scores")
    mergeable = {
        token: float(score)
        for token, kind, score in zip(tokens, types, scores.tolist(), strict=True)
        if kind in (_TokenType.NORMAL, _TokenType.USER_DEFINED, _TokenType.UNUSED)
    }
    unknown = _token_id(meta, "unknown_token_id", tokens)
    backend = Tokenizer(
        BPE(
            vocabulary,
            _merges_by_score(mergeable),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", SPACE_MARK)
    if meta.flag("tokenizer.ggml.add_space_prefix", default=True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE_MARK), spaces])
    else:
        backend.normalizer = spaces
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def _merges_by_score(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """All ways to put a piece together from two others, best piece first: SentencePiece always joins the two
    neighbours whose joint piece has the highest score."""
    merges: list[tuple[float, str, str]] = []
    for piece, score in scores.items():
        if len(piece) > _MAX_PIECE_CHARACTERS:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in scores and right in scores:
                merges.append((score, left, right))
    merges.sort(key=lambda merge: -merge[0])
    return [(left, right) for _, left, right in merges]


def _add_special(backend: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens are special; user-defined ones are plain text that is never split."""
    special = _of_type(tokens, types, _TokenType.CONTROL, _TokenType.UNKNOWN)
    plain = _of_type(tokens, types, _TokenType.USER_DEFINED)
    register(backend, [AddedToken(token, special=True, normalized=False) for token in special])
    register(backend, [AddedToken(token, special=False, normalized=False) for token in plain])


def _of_type(tokens: list[str], types: list[int], *kinds: _TokenType) -> list[str]:
    return [token for token, kind in zip(tokens, types, strict=True) if kind in kinds and token]


def _add_sequence_ends(backend: Tokenizer, meta: Metadata, tokens: list[str], *, with_bos: bool) -> None:
    """Let the tokenizer put BOS and EOS around a raw prompt, where the file asks for them."""
    bos, eos = _token_id(meta, "bos_token_id", tokens), _token_id(meta, "eos_token_id", tokens)
    add_bos = meta.flag("tokenizer.ggml.add_bos_token", default=with_bos)
    add_eos = meta.flag("tokenizer.ggml.add_eos_token", default=False)
    wrap_sequences(
        backend,
        tokens[bos] if add_bos and bos is not None else None,
        tokens[eos] if add_eos and eos is not None else None,
    )


def _token_types(meta: Metadata, count: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in meta:
        return [_TokenType.NORMAL] * count
    types = meta.numbers("tokenizer.ggml.token_type")
    if len(types) != count:
        raise ModelError(f"{meta.path}: the tokenizer has {count} tokens and {len(types)} token types")
    if types.dtype.kind not in "iu":
        raise ModelError(f"{meta.path}: the token types of the tokenizer are not whole numbers")
    return types.tolist()


def _token_id(meta: Metadata, key: str, tokens: list[str]) -> int | None:
    """An id that the file names; None when it names none, or one outside the vocabulary."""
    full_key = f"tokenizer.ggml.{key}"
    if full_key not in meta:
        return None
    token_id = meta.integer(full_key)
    return token_id if token_id < len(tokens) else None
