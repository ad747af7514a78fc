"""Which text begins a call, who reads on from there, and which text is markup by itself."""

from __future__ import annotations

from collections.abc import Callable

from mlxcel.chat.tools import (
    function_gemma,
    functionary_v31,
    functionary_v32,
    gemma4,
    glm47,
    granite,
    harmony,
    hermes,
    kimi_k2,
    llama3,
    longcat,
    minimax_m2,
    minimax_m3,
    mistral_bracketed,
    mistral_nemo,
    pythonic,
    qwen3_coder,
)
from mlxcel.chat.tools.sink import Sink
from mlxcel.chat.tools.source import Reading, Source

Reader = Callable[[Source, Sink], Reading[None]]
"""Reads what stands after a marker; raises NotACall when that is no call."""

SPECIAL: dict[str, Reader] = {
    hermes.OPEN: hermes.read_block,
    mistral_nemo.OPEN: mistral_nemo.read,
    minimax_m3.PREFIX: minimax_m3.read,
    longcat.OPEN: longcat.read,
    kimi_k2.OPEN: kimi_k2.read_section,
    kimi_k2.CALL: kimi_k2.read_call,
    gemma4.OPEN: gemma4.read,
    function_gemma.OPEN: function_gemma.read,
    llama3.OPEN: llama3.read,
    pythonic.OPEN: pythonic.read,
}
"""Markers that mean nothing else: they are never shown, whatever follows."""

ORDINARY: dict[str, Reader] = {
    granite.OPEN: granite.read,
    minimax_m2.OPEN: minimax_m2.read,
    functionary_v32.OPEN: functionary_v32.read,
    qwen3_coder.OPEN: qwen3_coder.read,
    pythonic.BARE_OPEN: pythonic.read_bare,
}
"""Text that also stands in ordinary answers: it is shown when no call follows."""

STRAY = frozenset(
    (
        hermes.CLOSE,
        longcat.CLOSE,
        kimi_k2.CLOSE,
        kimi_k2.CALL_END,
        gemma4.CLOSE,
        function_gemma.CLOSE,
        pythonic.CLOSE,
        *pythonic.PYTHON_MARKS,
        *minimax_m2.WRAPPER,
        *qwen3_coder.OTHER_WRAPPER,
    )
)
"""Markup that may be left around calls: it is never shown."""

CLOSING = STRAY | {functionary_v31.CLOSE, minimax_m2.CLOSE, granite.CLOSE}
"""What a client may end an answer with, and have a complete call."""

MARKUP = frozenset(
    (
        *SPECIAL,
        *STRAY,
        *harmony.MARKS,
        *glm47.TAGS.all,
        *longcat.TAGS.all,
        *(text for mark in ORDINARY if (text := mark.strip()) != pythonic.BARE_OPEN),
        function_gemma.ESCAPE,
        gemma4.QUOTE,
        granite.CLOSE,
        kimi_k2.ARGUMENTS,
        mistral_bracketed.ARGUMENTS,
        mistral_bracketed.CALL_ID,
    )
)
"""What vocabularies have special tokens for, whose text the readers have to see."""
