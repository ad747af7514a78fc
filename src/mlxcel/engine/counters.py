"""Numbers the worker keeps, and `/health` and `/metrics` show."""

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
    prefill_seconds: float = 0.0
    prefill_chunks: int = 0
    prefill_grants: int = 0
    """Chunks of a prompt that were read while rows waited for it."""
    decode_tokens: int = 0
    decode_seconds: float = 0.0
    decode_steps: int = 0
    decode_rows: int = 0
    """Rows of all steps together."""
