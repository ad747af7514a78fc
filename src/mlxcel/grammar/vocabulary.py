"""A model's tokens in the form in which the grammar engine walks through them."""

from __future__ import annotations

import logging
from typing import Any

import llguidance
import msgspec
import numpy as np

from mlxcel.engine.backend import ModelInfo
from mlxcel.engine.constraint import Words
from mlxcel.grammar.errors import UnsupportedTokenizer
from mlxcel.models.tokenizer import TextTokenizer

log = logging.getLogger(__name__)

_COMPARED = 4096
"""Tokens whose bytes are compared, spread over the vocabulary."""


class _Model(msgspec.Struct):
    type: str | None = None


class _TokenizerFile(msgspec.Struct):
    """A `tokenizer.json`, as far as it matters here."""

    model: _Model


class Vocabulary:
    """The tokens of one model. May be used from any thread.

    Making it takes a fraction of a second, in which no other Python thread runs: make it once. Raises
    UnsupportedTokenizer.
    """

    def __init__(self, info: ModelInfo) -> None:
        if not isinstance(info.tokenizer, TextTokenizer) or info.tokenizer.sentencepiece:
            raise UnsupportedTokenizer
        self._tokenizer = info.tokenizer
        self.trie: Any = _trie(self._tokenizer)
        """For the grammar engine."""
        size = self._tokenizer.vocab_size
        self.mask_bytes = -(-size // 32) * 4
        """What the grammar engine writes into a mask."""
        self._words = -(-max(size, info.vocabulary) // 32)
        self.ends = self.mask_of(self._tokenizer.eos_token_ids)
        """The tokens that end a text."""
        self._overshooting: dict[bytes, dict[int, Words]] = {}

    def mask_of(self, tokens: frozenset[int] = frozenset()) -> Words:
        """A mask that allows these tokens only."""
        words = np.zeros(self._words, np.uint32)
        for token in tokens:
            words[token // 32] |= np.uint32(1 << token % 32)
        return words

    def spelled(self, token: int) -> bytes:
        """What a token stands for; unlike in the text, special tokens are written out."""
        return self._tokenizer.token_bytes(token) or self._tokenizer.token_text(token).encode()

    def overshooting(self, marker: bytes) -> dict[int, Words]:
        """Tokens that say the end of `marker` and, after it, more than white space: a mask of them for each number of
        bytes of it that may have been said before. Looks at every token when it is first asked for a marker."""
        if marker not in self._overshooting:
            ends = tuple(marker[said:] for said in range(len(marker)))
            tokens: dict[int, set[int]] = {}
            for token in range(self._tokenizer.vocab_size):
                text = self.spelled(token)
                if marker in text and text.partition(marker)[2].strip():
                    tokens.setdefault(0, set()).add(token)
                elif text.startswith(ends):
                    for said, end in enumerate(ends):
                        if text.startswith(end) and text[len(end) :].strip():
                            tokens.setdefault(said, set()).add(token)
            self._overshooting[marker] = {said: self.mask_of(frozenset(found)) for said, found in tokens.items()}
        return self._overshooting[marker]

    def is_special(self, token: int) -> bool:
        """Whether the grammar engine takes a token for no text; it does so with some that others show."""
        return self.trie.is_special_token(token)

    def tokens_of(self, text: bytes | str) -> list[int]:
        """Tokens for a text, special tokens inside it among them."""
        if isinstance(text, bytes):
            return self.trie.tokenize_bytes(text)
        return self._tokenizer.encode(text)


def _trie(tokenizer: TextTokenizer) -> Any:
    source = tokenizer.to_json()
    if msgspec.json.decode(source, type=_TokenizerFile).model.type != "BPE":
        raise UnsupportedTokenizer
    try:
        trie: Any = llguidance.LLTokenizer(
            source,
            n_vocab=tokenizer.vocab_size,
            eos_token=sorted(tokenizer.eos_token_ids) or None,
            slices=llguidance.LLTokenizer.json_slices(),
        )
    except Exception as error:
        log.warning("the grammar engine cannot read the tokenizer: %s", error)
        raise UnsupportedTokenizer from error
    # The engine and the text must agree on what a token says, or a valid text would be another one on the wire.
    for token in range(0, tokenizer.vocab_size, tokenizer.vocab_size // _COMPARED + 1):
        text = tokenizer.token_bytes(token)
        if text and b"\xff" not in text and trie.decode_bytes([token]) != text:  # no UTF-8 has that byte
            log.warning("the grammar engine reads token %d differently", token)
            raise UnsupportedTokenizer
    return trie
