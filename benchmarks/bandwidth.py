"""The read bandwidth of this machine's memory, by a small native program that is compiled when it is wanted."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("read_bandwidth.cpp")
_FLAGS = ("-std=c++20", "-O3", "-march=native", "-shared", "-fPIC", "-pthread")
_BYTES = 3 << 29


def read_bandwidth(threads: int, rounds: int = 5) -> float:
    """Bytes per second that `threads` threads read together at their best."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "read_bandwidth.so"
        subprocess.run([os.environ.get("CXX", "g++"), *_FLAGS, _SOURCE, "-o", library], check=True)
        function = ctypes.CDLL(str(library)).read_bandwidth
    function.restype = ctypes.c_double
    function.argtypes = (ctypes.c_size_t, ctypes.c_int, ctypes.c_int)
    return float(function(_BYTES, threads, rounds))
