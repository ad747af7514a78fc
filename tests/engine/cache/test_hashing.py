"""Names of blocks."""

from __future__ import annotations

import hashlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel.engine.cache.hashing import BlockHasher, UnknownHash

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def chain(tokens: list[int], scope: str = "", block: int = 4, hash: str = "sha256") -> list[bytes]:
    return list(BlockHasher(hash, block).chain(scope, np.asarray(tokens, np.int32)))


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_two_prompts_have_the_names_of_their_common_blocks_in_common(a: list[int], b: list[int], block: int) -> None:
    first, second = chain(a, block=block), chain(b, block=block)
    assert len(first) == len(a) // block
    common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))) // block
    shared = next(
        (i for i, (x, y) in enumerate(zip(first, second, strict=False)) if x != y), min(len(first), len(second))
    )
    assert shared == common
    assert not set(first[shared:]) & set(second[shared:])


def test_scopes_have_names_of_their_own() -> None:
    assert not set(chain([1] * 16, "a")) & set(chain([1] * 16, "b"))


def test_another_function_comes_from_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", SimpleNamespace(blake3=hashlib.blake2s))
    assert chain([1] * 8, hash="blake3") != chain([1] * 8)
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(UnknownHash, match="blake3 needs the Python package of that name"):
        chain([1], hash="blake3")
