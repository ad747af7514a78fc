"""What a tokenizer of the Rust library is made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

SPACE_MARK = "\u2581"
"""What SentencePiece vocabularies write for a space."""


def parts_of(component: object | None) -> Iterator[Mapping[str, Any]]:
    """The JSON form of a normalizer, pre-tokenizer or decoder, sequences taken apart, in no particular order."""
    if component is None:
        return
    pending: list[dict[str, Any]] = [json.loads(cast(Any, component).__getstate__())]
    while pending:
        part = pending.pop()
        yield part
        for key in ("decoders", "pretokenizers", "normalizers"):
            pending += part.get(key, ())
