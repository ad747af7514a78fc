"""The table of the server's flags: from it come the parser, the variables, the help and `docs/flags.md`."""

from __future__ import annotations

from mlxcel.cli.flags_cache import CACHE_FLAGS, MEMORY_FLAGS
from mlxcel.cli.flags_chat import CHAT_FLAGS
from mlxcel.cli.flags_generation import ENGINE_FLAGS, GRAMMAR_FLAGS, SAMPLING_FLAGS, TEMPLATE_FLAGS
from mlxcel.cli.flags_serving import GENERAL_FLAGS, LOG_FLAGS, MODEL_FLAGS, NETWORK_FLAGS, OPERATIONS_FLAGS
from mlxcel.cli.flags_unserved import UNSERVED_FLAGS

SERVED_FLAGS = (
    *MODEL_FLAGS,
    *NETWORK_FLAGS,
    *ENGINE_FLAGS,
    *MEMORY_FLAGS,
    *CACHE_FLAGS,
    *SAMPLING_FLAGS,
    *GRAMMAR_FLAGS,
    *TEMPLATE_FLAGS,
    *CHAT_FLAGS,
    *OPERATIONS_FLAGS,
    *LOG_FLAGS,
    *GENERAL_FLAGS,
)
"""Flags that act. Where two rows have one target, the lower row wins."""

SERVER_FLAGS = (*SERVED_FLAGS, *UNSERVED_FLAGS)
"""Every flag the server knows."""
