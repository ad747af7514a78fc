"""A tokenizer without a model."""

from __future__ import annotations

from collections.abc import Sequence


class CharTokenizer:
    """One id per character. `<s>` and `</s>` are ids 1 and 2, and may be added around raw text."""

    vocab_size = 0x110000
    eos_token_ids = frozenset({2})

    def __init__(self, *, add_bos: bool = False, add_eos: bool = False) -> None:
        self.before = [1] if add_bos else []
        self.after = [2] if add_eos else []

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        text.encode("utf-8")  # like a real tokenizer, refuses lone surrogates
        if parse_special:
            text = text.replace("</s>", "\x02").replace("<s>", "\x01")
        ids = [ord(character) for character in text]
        return self.before + ids + self.after if add_special else ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in ids if token > 2)

    def token_bytes(self, token_id: int) -> bytes:
        return chr(token_id).encode() if token_id > 2 else b""


class MarkerTokenizer(CharTokenizer):
    """Characters, and some markers as tokens of their own: special ones show no text, `plain` ones do."""

    def __init__(self, *special: str, plain: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.markers = {marker: 0x110000 + index for index, marker in enumerate((*special, *plain))}
        self.plain = plain

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        return [self.markers[text]] if text in self.markers else super().encode(text)

    def token_bytes(self, token_id: int) -> bytes:
        for marker, token in self.markers.items():
            if token == token_id:
                return marker.encode() if marker in self.plain else b""
        return super().token_bytes(token_id)
