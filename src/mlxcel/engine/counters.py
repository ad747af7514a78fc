"""Numbers the worker keeps and `/health` shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Written by the worker thread only; reading single numbers from another thread is safe."""

    active: int = 0
    """Sequences in a slot, prefilling or decoding."""
    rows: int = 0
    """Sequences in the decode batch."""
    started: int = 0
    completed: int = 0
    """Sequences that ended by themselves; cancelled and failed ones are not counted."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    decode_steps: int = 0
    prefill_chunks: int = 0
