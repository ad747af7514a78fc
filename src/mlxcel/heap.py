"""The C library's heap. These functions are for glibc; elsewhere they do nothing."""

from __future__ import annotations

import ctypes
from contextlib import suppress

_M_ARENA_MAX = -8  # of its malloc.h


def share() -> None:
    """Let all threads take memory from one heap: glibc would give each thread its own, and what a large request once
    took of it stays there. To be called before there are threads."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Give what is free back to the system, which glibc does by itself only at the heap's end: after packing, nearly a
    copy of the weights; between requests, what the largest of them needed. Takes about a millisecond.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
