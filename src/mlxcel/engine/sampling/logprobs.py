"""Log probabilities under the model's own distribution, before penalties and filters."""

from __future__ import annotations

import math

import numpy as np

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.events import TokenChoice, TokenLogprob
from mlxcel.engine.sampling.candidates import Floats
from mlxcel.engine.sampling.rows import Rows, rows


def token_logprob(
    logits: Floats, token: int, alternatives: int, tokenizer: Tokenizer, operations: Rows | None = None
) -> TokenLogprob:
    """The chosen token's entry with the `alternatives` most likely tokens.

    logits: float32 [vocabulary], as the model gave them.
    """
    operations = rows() if operations is None else operations
    peak, mass = operations.mass(logits, 1.0)
    total = peak + math.log(mass)

    def choice(token_id: int) -> TokenChoice:
        raw = tokenizer.token_bytes(token_id)
        return TokenChoice(token_id, raw.decode(errors="replace"), raw, float(logits[token_id]) - total)

    best: list[int] = []
    if alternatives > 0:
        ids = operations.top_k(logits, alternatives)
        best = ids[np.argsort(-logits[ids], kind="stable")].tolist()
    return TokenLogprob(choice(token), tuple(choice(token_id) for token_id in best))
