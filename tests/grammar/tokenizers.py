"""Tokenizers without a model, and what it takes to let random tokens through a rule."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel

from mlxcel.engine.backend import ModelInfo
from mlxcel.engine.constraint import Constraint
from mlxcel.models.tokenizer import _BYTE_OF, TextTokenizer  # pyright: ignore[reportPrivateUsage]
from tests.engine.scripted import EOS

WORDS = ("true", "null", '{"', '":', '",', " the", "20", "<think>")
"""Tokens of several bytes, from 258 on; the last is plain text that is never split."""


def byte_tokenizer(*special: str, words: Sequence[str] = WORDS) -> TextTokenizer:
    """Tokens 0 to 255 are bytes; 256 ends a text and 257 begins one, as `tests.engine.scripted` has it. `words` follow,
    then the tokens `special`."""
    vocabulary = dict(_BYTE_OF)
    backend = Tokenizer(BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<begin>", special=True)])
    backend.add_tokens([AddedToken(word, normalized=False) for word in words])
    backend.add_special_tokens([AddedToken(text, special=True) for text in special])
    return TextTokenizer(backend, [EOS])


def word_tokenizer() -> TextTokenizer:
    """One that is not BPE."""
    return TextTokenizer(Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")), [1])


def info_of(tokenizer: TextTokenizer, vocabulary: int | None = None) -> ModelInfo:
    """A model with as many embeddings as the tokenizer has tokens, unless another number is given."""
    return ModelInfo("none", tokenizer, vocabulary or tokenizer.vocab_size, 4096, None)


def allowed(constraint: Constraint, count: int = 1 << 20) -> list[int]:
    """The tokens that may come, of the first `count`."""
    mask = constraint.mask
    assert mask is not None
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[:count].tolist()


def wander(constraint: Constraint, tokenizer: TextTokenizer, seed: int, limit: int = 200) -> bytes | None:
    """The bytes of a random text that the rule lets through; None when it does not end within `limit` tokens."""
    chance, said = random.Random(seed), b""
    for position in range(limit):
        legal = allowed(constraint)
        if EOS in legal and (position > 20 or chance.random() < 0.3):
            return said
        legal = [token for token in legal if token != EOS]
        closing = [token for token in legal if tokenizer.token_bytes(token) in (b'"', b"}", b"]", b",", b":")]
        token = chance.choice(closing if closing and chance.random() < position / 30 else legal)
        said += tokenizer.token_bytes(token)
        if constraint.consume(token):
            return said
    return None


def spell(constraint: Constraint, tokenizer: TextTokenizer, text: str | bytes) -> bool | None:
    """Say a text with the longest tokens that may come; whether it is complete then, or None when it may not be said.

    Where only one text is possible, a rule insists on the tokens that the tokenizer would make of it.
    """
    rest, complete = text.encode() if isinstance(text, str) else text, False
    while rest:
        fitting = (
            []
            if complete
            else [t for t in allowed(constraint) if (b := tokenizer.token_bytes(t)) and rest.startswith(b)]
        )
        if not fitting:
            return None
        token = max(fitting, key=lambda t: len(tokenizer.token_bytes(t)))
        complete = constraint.consume(token)
        rest = rest.removeprefix(tokenizer.token_bytes(token))
    return complete


def follow(constraint: Constraint, tokens: Sequence[int]) -> bool | None:
    """Consume tokens; whether the text is complete then, or None when one of them may not come."""
    complete = False
    for token in tokens:
        if complete or token not in allowed(constraint):
            return None
        complete = constraint.consume(token)
    return complete
