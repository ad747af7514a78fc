"""Names for the beginnings of prompts: a chain of digests, one for each block of tokens."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]


class UnknownHash(ValueError):
    """A hash function that this installation does not have."""


class BlockHasher:
    """Digests of token blocks, each of which covers all that stands before it.

    hash: `sha256`, or `blake3` where that package is installed; else UnknownHash. block: tokens in a block.
    """

    def __init__(self, hash: str, block: int) -> None:
        self.block = block
        self._hash = _function(hash)

    def chain(self, scope: str, tokens: Tokens) -> Iterator[bytes]:
        """A digest for each whole block of `tokens`; equal tokens in different scopes have different ones."""
        data, step = tokens.tobytes(), self.block * tokens.itemsize
        digest: bytes = self._hash(scope.encode()).digest()
        for end in range(step, len(data) + 1, step):
            digest = self._hash(digest + data[end - step : end]).digest()
            yield digest


def _function(name: str) -> Callable[[bytes], Any]:
    if name == "sha256":
        return hashlib.sha256
    try:
        return importlib.import_module(name).blake3
    except (ImportError, AttributeError) as error:
        raise UnknownHash(
            f"{name} needs the Python package of that name (pip install {name}); or use sha256"
        ) from error
