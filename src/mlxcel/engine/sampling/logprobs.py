"""Log probabilities under the model's own distribution, before penalties and filters."""

from __future__ import annotations

import numpy as np

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.events import TokenChoice, TokenLogprob
from mlxcel.engine.sampling.candidates import Candidates, Floats
from mlxcel.engine.sampling.filters import top_k


def token_logprob(logits: Floats, token: int, alternatives: int, tokenizer: Tokenizer) -> TokenLogprob:
    """The chosen token's entry with the `alternatives` most likely tokens.

    logits: float32 [vocabulary], as the model gave them.
    """
    peak = float(logits.max())
    # float32 exponentials, float64 sum: the widening matters in the sum, and the exponentials are most of the cost.
    total = peak + float(np.log(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))

    def choice(token_id: int) -> TokenChoice:
        raw = tokenizer.token_bytes(token_id)
        return TokenChoice(token_id, raw.decode(errors="replace"), raw, float(logits[token_id]) - total)

    best: list[int] = []
    if alternatives > 0:
        ids = top_k(Candidates(logits), alternatives).sort().ids
        best = [] if ids is None else [int(i) for i in ids[:alternatives]]
    return TokenLogprob(choice(token), tuple(choice(token_id) for token_id in best))
