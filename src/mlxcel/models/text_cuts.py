"""Where a long text may be cut, so that the ids of its pieces are the ids of the whole.

The library needs up to 600 bytes for each byte of a text, and its caller holds a lock all the while. Nearly all
tokenizers split a text into words first, with regular expressions that are matched one behind the other, and treat
each word by itself: a text may be cut at any place where two words meet whatever is around them. A letter or digit and
the space, line break or mark behind it meet like that in all of them that are known; each tokenizer is asked.

SentencePiece vocabularies merge across the whole text, but only to pieces that they hold: if none has the mark of a
space behind something else, none of a text's pieces reaches across such a place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import tokenizers

from mlxcel.models.tokenizer_parts import SPACE_MARK, parts_of

PIECE = 1 << 14
"""Characters that a piece has at least."""

LONGEST = 1 << 16
_TRIES = 100

_ENDS = {
    "A-Za-z": ("a", "Az"),
    "\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f": ("\u00e9",),
    "\u0391-\u03a1\u03a3-\u03c9": ("\u03b8",),
    "\u0400-\u0481": ("\u0436",),
    "\u05d0-\u05ea": ("\u05d0",),
    "\u0621-\u063a\u0641-\u064a": ("\u0639",),
    "\u0904-\u0939": ("\u0905",),
    "\u0e01-\u0e30": ("\u0e01",),
    "\u3041-\u3096\u30a1-\u30fa": ("\u306e", "\u30ab"),
    "\u4e00-\u9fff": ("\u6f22\u5b57",),
    "\uac00-\ud7a3": ("\ud55c",),
    "0-9": ("1", "12", "123", "1234", "a1"),
}
"""Classes of characters that words end in, as regular expressions write them between brackets, and such words."""
# An apostrophe is none: with letters behind it belongs to the word.
_MARKS = ' \n0123456789,.;:!?()[]{}<>+-*/=_#@&|\\"\uff0c\u3002\u3001\uff1b\uff1a\uff01\uff1f\uff08\uff09\u300c\u300d'
_AFTER = ("a", "\u00e9", "\u0436", "\u306e", "\u6f22\u5b57", "\ud55c", "1", " ", "\n", "\n\n", ".", "'s", "...", "_")
_NORMALIZERS = {"Sequence", "NFC"}
"""They change nothing across a letter and a mark behind it."""
_PRE_TOKENIZERS = {"Sequence", "Split", "ByteLevel", "Digits", "Punctuation"}
_SELF_CONTAINED = re.compile(r"\\[^bBAG]|\[(?:\\.|[^\]\\])*\]")
_LOOKS_BACK = re.compile(r"\(\?<[=!]|\\|\^")
"""In an expression without what is self-contained: what it finds depends on what is in front of where it begins."""


class TextCuts:
    """The places where texts may be cut for one tokenizer."""

    def __init__(self, pattern: str, added: Collection[str], *, prefixes_space: bool = False) -> None:
        """pattern: matches what is in front of such a place. added: tokens that are searched in the text before it is
        split into words; they may take spaces around them along. prefixes_space: the tokenizer puts a space before
        each text."""
        self._pattern = re.compile(pattern)
        self._prefixes_space = prefixes_space
        self._added = tuple(added)
        self._reach = max(map(len, added), default=0) + 1

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> TextCuts | None:
        """None: no place is known to be safe, because words are not treated by themselves or a text is changed in ways
        that depend on where it begins."""
        added = [token.content for token in backend.get_added_tokens_decoder().values()]
        if _joins_at_spaces(backend):
            prepends = any(part["type"] == "Prepend" for part in parts_of(backend.normalizer))
            return cls(rf"[^\s{SPACE_MARK}](?= [\s\S])", added, prefixes_space=prepends)
        split = backend.pre_tokenizer
        if split is None or not all(map(_begins_anywhere, parts_of(split))):
            return None
        if any(part["type"] not in _NORMALIZERS for part in parts_of(backend.normalizer)):
            return None
        choices: list[str] = []
        for end, words in _ENDS.items():
            if marks := "".join(re.escape(mark) for mark in _MARKS if _always_ends(split, words, mark)):
                choices.append(f"[{end}](?=[{marks}])")
        return cls("|".join(choices), added) if choices else None

    def pieces(self, text: str, size: int = PIECE) -> Iterator[str]:
        """The text in pieces of `size` characters, or as many more as there are up to a place to cut it, but at most
        LONGEST more: a word as long as that is no text, and its tokens may be others then. A space that the tokenizer
        puts before a piece by itself is not in it."""
        begin = 0
        while begin < len(text):
            end = self._cut(text, begin + size) if begin + size < len(text) else len(text)
            yield text[begin:end]
            begin = end + (self._prefixes_space and text.startswith(" ", end))

    def _cut(self, text: str, first: int) -> int:
        last = first + LONGEST
        for match in itertools.islice(self._pattern.finditer(text, first, last), _TRIES):
            cut = match.end()
            around = text[max(0, cut - self._reach) : cut + self._reach]
            if not any(token in around for token in self._added):
                return cut
        return next((cut for cut in range(last, len(text)) if not self._in_added(text, cut)), len(text))

    def _in_added(self, text: str, cut: int) -> bool:
        return any(token in text[max(0, cut - len(token) + 1) : cut + len(token) - 1] for token in self._added)


def _joins_at_spaces(backend: tokenizers.Tokenizer) -> bool:
    """Whether the vocabulary is one of SentencePiece's, and no piece has a space behind something else."""
    if not isinstance(backend.model, tokenizers.models.BPE):
        return False
    parts = [*parts_of(backend.normalizer), *parts_of(backend.pre_tokenizer)]
    kinds = {part["type"] for part in parts}
    if not kinds & {"Replace", "Metaspace"} or kinds - {"Sequence", "Prepend", "Replace", "Metaspace", "Split"}:
        return False
    for part in parts:
        mark = part.get("prepend") or part.get("content") or part.get("replacement")
        if (mark or SPACE_MARK) != SPACE_MARK or part.get("pattern", {"String": " "}) != {"String": " "}:
            return False
    inside = re.compile(f"[^{SPACE_MARK}]{SPACE_MARK}")
    return not any(map(inside.search, backend.get_vocab(with_added_tokens=False)))


def _begins_anywhere(part: Mapping[str, Any]) -> bool:
    """Whether a part of a pre-tokenizer does the same with a text wherever it begins, if that is where a word does."""
    pattern = _SELF_CONTAINED.sub("", part["pattern"].get("Regex", "")) if part["type"] == "Split" else ""
    return part["type"] in _PRE_TOKENIZERS and not part.get("add_prefix_space") and not _LOOKS_BACK.search(pattern)


def _always_ends(split: tokenizers.pre_tokenizers.PreTokenizer, words: Collection[str], mark: str) -> bool:
    for before in words:
        alone = [span for _, span in split.pre_tokenize_str(before)]
        for after in _AFTER:
            spans = [span for _, span in split.pre_tokenize_str(before + mark + after)]
            if spans[: len(alone)] != alone or spans[len(alone)][0] != len(before):
                return False
    return True
