"""Log probabilities under the model's own distribution, before bias, penalties and filters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.events import TokenChoice, TokenLogprob
from mlxcel.engine.sampling.candidates import Floats
from mlxcel.engine.sampling.top_k import largest
from mlxcel.engine.sampling.weights import mass

Logprobs = tuple[float, list[tuple[int, float]]]
"""The log probability of a token, and the likeliest tokens with theirs, best first."""


def logprobs(logits: Floats, token: int, count: int) -> Logprobs:
    """Those of `token` and of the `count` likeliest; among equal ones the lower token comes first.

    logits: float32 [vocabulary], as the model gave them.
    """
    total = float(logits.max()) + math.log(mass(logits, 1.0))
    best = largest(logits, count)
    best = best[np.argsort(-logits[best], kind="stable")]
    return float(logits[token]) - total, [(int(listed), float(logits[listed]) - total) for listed in best]


_NO_SPELLING: Mapping[int, str] = {}


def token_logprob(
    token: int, found: Logprobs, tokenizer: Tokenizer, spelling: Mapping[int, str] = _NO_SPELLING
) -> TokenLogprob:
    """The entry of a chosen token.

    spelling: text of the special tokens that are shown; the others have none.
    """

    def choice(token_id: int, logprob: float) -> TokenChoice:
        raw = spelling.get(token_id, "").encode() or tokenizer.token_bytes(token_id)
        return TokenChoice(token_id, raw.decode(errors="replace"), raw, logprob)

    own, best = found
    return TokenLogprob(choice(token, own), tuple(choice(listed, logprob) for listed, logprob in best))
