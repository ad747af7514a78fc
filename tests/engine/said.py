"""What a model said, compared as strictly as its arithmetic allows.

Small random models like to say the same few tokens whatever they have read, so tokens alone prove little: each comes
with its log probability, which depends on everything before it, and no token comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlxcel.engine.events import TextPiece, Usage
from mlxcel.engine.generation import Generation
from mlxcel.engine.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0, presence_penalty=1e3, ignore_eos=True)
RANDOM = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, presence_penalty=1e3, ignore_eos=True)

TOLERANCE = 2e-3
"""Of log probabilities where the order of a sum may differ."""


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """Tokens of an answer and their log probabilities. Equal to another one when the tokens are the same and the
    numbers as well: nearly, or to the bit where both are `exact`."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    usage: Usage
    exact: bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Said) or self.tokens != other.tokens:
            return False
        if self.exact and other.exact:
            return self.logprobs == other.logprobs
        return np.allclose(self.logprobs, other.logprobs, rtol=0, atol=TOLERANCE)


async def said(generation: Generation, *, exact: bool) -> Said:
    """Read an answer that was asked for with log probabilities to its end."""
    entries = []
    async for event in generation:
        if isinstance(event, TextPiece):
            entries += [entry.chosen for entry in event.logprobs]
        else:
            assert event.message is None, event
            return Said(
                tuple(entry.token_id for entry in entries),
                tuple(entry.logprob for entry in entries),
                event.usage,
                exact,
            )
    raise AssertionError("it was cut off")
