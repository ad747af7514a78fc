from __future__ import annotations

import ctypes
import platform

import psutil

from mlxcel import heap

PIECES = 1000
SIZE = 64 << 10


def test_what_lies_free_below_something_in_use_goes_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    process = psutil.Process()
    pieces = [libc.malloc(SIZE) for _ in range(PIECES)]
    for piece in pieces:
        ctypes.memset(piece, 1, SIZE)
    for piece in pieces[:-1]:
        libc.free(piece)
    before = process.memory_info().rss
    heap.return_free_memory()
    after = process.memory_info().rss
    libc.free(pieces[-1])
    assert before - after > PIECES * SIZE // 2 or platform.libc_ver()[0] != "glibc"
