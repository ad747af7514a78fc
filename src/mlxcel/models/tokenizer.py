"""Text to token ids and back, on the Rust `tokenizers` library alone.

`mlxcel.models.tokenizer_gguf` and `mlxcel.models.tokenizer_folder` build the library's object from a checkpoint;
this module gives it the interface that the engine asks for.
"""

from __future__ import annotations

import enum
import functools
import itertools
import re
import threading
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import tokenizers

from mlxcel.models.errors import ModelError, one_line
from mlxcel.models.text_cuts import PIECE, TextCuts
from mlxcel.models.tokenizer_parts import SPACE_MARK, parts_of

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

# Ends of a turn in chat templates. Checkpoints often name only one end token although their template uses another.
_TURN_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
# In the harmony format `<|end|>` ends one message of a reply that goes on; these two end the reply.
_HARMONY_ENDS = ("<|return|>", "<|call|>")


class Spelling(enum.Enum):
    """How a vocabulary writes the bytes of its tokens."""

    BYTE_LEVEL = enum.auto()
    """One printable character for each byte, as GPT-2 does."""
    SENTENCEPIECE = enum.auto()
    """Plain text with a mark for the space, and `<0xAB>` for single bytes."""
    PLAIN = enum.auto()
    """Anything else: the library's decoder knows."""


class TextTokenizer:
    """The engine's tokenizer. Methods may be called from any thread.

    backend: the library's object with its special tokens registered; it belongs to this object from now on.
    eos_token_ids: ids that end a generation.
    sentencepiece: it was rebuilt from a SentencePiece vocabulary.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, eos_token_ids: Collection[int], *, sentencepiece: bool = False
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.sentencepiece = sentencepiece
        self._lock = threading.Lock()
        self._added = added_tokens(backend)
        self._bytes: dict[int, bytes] = {}
        self._spelling = spelling_of(backend)
        self._prefixes_space = self._spelling is Spelling.SENTENCEPIECE and _prefixes_space(backend)
        base = backend.get_vocab_size(with_added_tokens=False)
        self._vocab_size = max([base, *(token_id + 1 for token_id in self._added)])
        self._eos_token_ids = frozenset(token_id for token_id in eos_token_ids if 0 <= token_id < self._vocab_size)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a generation."""
        return self._eos_token_ids

    @property
    def spelling(self) -> Spelling:
        """How the vocabulary writes bytes."""
        return self._spelling

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Ids of `text`.

        add_special: let the tokenizer add its own BOS/EOS, as for a raw prompt.
        parse_special: read the spelling of a special token inside `text` as that token.
        """
        text = _without_lone_surrogates(text)
        if len(text) <= PIECE or (ends := self._ends) is None or (cuts := self._cuts) is None:
            return self._encode(text, add_special, parse_special)
        before, after = ends if add_special else ((), ())
        pieces = (self._encode(piece, False, parse_special) for piece in cuts.pieces(text))
        return [*before, *itertools.chain.from_iterable(pieces), *after]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` with special tokens left out; bytes that are not UTF-8 become U+FFFD."""
        if self._spelling is Spelling.PLAIN:
            known = [token_id for token_id in ids if 0 <= token_id < self._vocab_size]
            return self._backend.decode(known, skip_special_tokens=True)
        text = b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._prefixes_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes a token adds to the output; empty for special tokens and ids that do not exist."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spelt_bytes(token_id)
        return known

    def token_text(self, token_id: int) -> str:
        """The token as the vocabulary spells it, special ones too; empty for ids that do not exist."""
        if not 0 <= token_id < self._vocab_size:
            return ""
        return self._backend.id_to_token(token_id) or ""

    def token_id(self, text: str) -> int | None:
        """Id of the token that the vocabulary spells `text`."""
        return self._backend.token_to_id(text)

    def to_json(self) -> str:
        """The tokenizer in the form of a `tokenizer.json` file."""
        return self._backend.to_str()

    @functools.cached_property
    def _cuts(self) -> TextCuts | None:
        with self._lock:
            return TextCuts.of(self._backend)

    @functools.cached_property
    def _ends(self) -> tuple[list[int], list[int]] | None:
        """The tokenizer's own BOS and EOS, if they are around the tokens of a text."""
        plain, whole = self._encode("a", False, True), self._encode("a", True, True)
        for begin in range(len(whole) - len(plain) + 1):
            end = begin + len(plain)
            if whole[begin:end] == plain:
                return whole[:begin], whole[end:]
        return None

    def _encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        with self._lock:  # the switch belongs to the shared object
            self._backend.encode_special_tokens = not parse_special
            # A batch of one: unlike `encode` it lets other Python threads run.
            return self._backend.encode_batch([text], add_special_tokens=add_special)[0].ids

    def _spelt_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return b"" if added.special else added.content.encode()
        text = self.token_text(token_id)
        if self._spelling is Spelling.BYTE_LEVEL:
            try:
                return bytes(_BYTE_OF[character] for character in text)
            except KeyError:  # not made of the alphabet: it stands for itself
                return text.encode()
        if self._spelling is Spelling.SENTENCEPIECE:
            byte = _BYTE_PIECE.fullmatch(text)
            return bytes([int(byte[1], 16)]) if byte else text.replace(SPACE_MARK, " ").encode()
        return self._backend.decode([token_id], skip_special_tokens=True).encode() if text else b""


@contextmanager
def library_errors(path: Path) -> Generator[None]:
    """Turn whatever the library raises over a damaged tokenizer into a ModelError that names `path`."""
    try:
        yield
    except ModelError:
        raise
    except BaseException as error:
        # It has no exception type of its own, and a panic in its Rust code is not even an Exception.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ModelError(f"{path}: the tokenizer cannot be read: {one_line(error)}") from error
        raise


def added_tokens(backend: tokenizers.Tokenizer) -> dict[int, tokenizers.AddedToken]:
    """Tokens that are matched in the text before anything else, special ones among them, by id."""
    return dict(backend.get_added_tokens_decoder())


def register(backend: tokenizers.Tokenizer, tokens: Sequence[tokenizers.AddedToken]) -> None:
    """Add tokens to `added_tokens`. One that the vocabulary holds keeps its id and takes the new properties."""
    untyped = cast(Any, backend)
    # The library's two methods differ only in whether the tokens become special.
    for special in (True, False):
        chosen = [token for token in tokens if token.special is special]
        if chosen:
            (untyped.add_special_tokens if special else untyped.add_tokens)(chosen)


def wrap_sequences(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Set the tokens that a raw prompt begins and ends with; None, or one outside the vocabulary: without one."""
    named: list[tuple[str, int]] = []
    template = ["$A"]
    for text, position in ((bos, 0), (eos, 2)):
        if text and (token_id := backend.token_to_id(text)) is not None:
            template.insert(position, text)
            named.append((text, token_id))
    backend.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=named)


def turn_end_ids(backend: tokenizers.Tokenizer) -> set[int]:
    """Ids of the special tokens that end a turn in the chat formats in use."""
    special = {token.content: token_id for token_id, token in added_tokens(backend).items() if token.special}
    ends = {special[text] for text in _TURN_ENDS if text in special}
    if all(text in special for text in _HARMONY_ENDS):
        ends -= {special.get("<|end|>")}
        ends |= {special[text] for text in _HARMONY_ENDS}
    return ends


def spelling_of(backend: tokenizers.Tokenizer) -> Spelling:
    """How the tokenizer's vocabulary writes bytes, told by the parts it is made of."""
    parts = [*parts_of(backend.decoder), *parts_of(backend.pre_tokenizer)]
    kinds = {part.get("type") for part in parts}
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if kinds & {"Metaspace", "ByteFallback"} or any(part.get("pattern") == {"String": SPACE_MARK} for part in parts):
        return Spelling.SENTENCEPIECE
    return Spelling.PLAIN


def _prefixes_space(backend: tokenizers.Tokenizer) -> bool:
    for part in (*parts_of(backend.normalizer), *parts_of(backend.pre_tokenizer)):
        if part.get("type") == "Prepend" and part.get("prepend") == SPACE_MARK:
            return True
        if part.get("type") == "Metaspace" and part.get("prepend_scheme") != "never":
            return True
    return False


def _without_lone_surrogates(text: str) -> str:
    """JSON can spell halves of a surrogate pair, which no UTF-8 text can hold; they become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 and up, in order."""
    alphabet: dict[str, int] = {}
    shifted = 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE:
            alphabet[chr(byte)] = byte
        else:
            alphabet[chr(shifted)] = byte
            shifted += 1
    return alphabet


_BYTE_OF = _byte_alphabet()
