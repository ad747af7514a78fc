"""A rule for what follows a model's reasoning."""

from __future__ import annotations

import numpy as np

from mlxcel.engine.constraint import Constraint, Rule, Words
from mlxcel.grammar.vocabulary import Vocabulary


class AfterReasoning:
    """Implements `mlxcel.engine.constraint.Rule`: free until the reasoning is closed, then under `rule`.

    close: text of the token or tokens that close it, special ones written out.
    opening: text that may open it; None: the prompt has, or the model will in any case. With it the model may also go
        without reasoning, and is under `rule` from the first token then.
    """

    def __init__(self, rule: Rule, vocabulary: Vocabulary, close: str, opening: str | None = None) -> None:
        self._rule = rule
        self._vocabulary = vocabulary
        self._close = close.encode()
        self._opening = [] if opening is None else vocabulary.tokens_of(opening)
        vocabulary.overshooting(self._close)  # which takes a moment, and not when the model waits

    def begin(self) -> Constraint:
        """The state before the first token."""
        return _Waiting(self._rule.begin(), self._vocabulary, self._close, self._opening)


class _Waiting:
    """Implements `mlxcel.engine.constraint.Constraint`."""

    def __init__(self, inner: Constraint, vocabulary: Vocabulary, close: bytes, opening: list[int]) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._close = close
        self._opening = list(opening)  # what of it is still to come
        self._choosing = bool(opening)  # whether there is reasoning at all
        self._tail = b""
        self._free = ~vocabulary.ends  # an end here would be an answer that the rule has not seen
        self._idle = True

    @property
    def mask(self) -> Words | None:
        """The tokens that may come next."""
        if not self._idle:
            return self._inner.mask
        if not self._opening:
            return self._unfinished()
        opening = self._vocabulary.mask_of(frozenset(self._opening[:1]))
        inner = self._inner.mask if self._choosing else None
        return opening if inner is None else np.bitwise_or(opening, inner)

    def _unfinished(self) -> Words:
        """Everything but the end of the answer, and tokens that would say the rest of the marker and go on at once, for
        the rule might not allow that."""
        allowed = self._free
        for said, tokens in self._vocabulary.overshooting(self._close).items():
            if self._tail.endswith(self._close[:said]):
                allowed = allowed & ~tokens
        return allowed

    def consume(self, token: int) -> bool:
        """Note a token; True when the text is complete and nothing may follow."""
        if not self._idle:
            return self._inner.consume(token)
        if self._opening:
            if token == self._opening[0]:
                self._choosing = False
                del self._opening[0]
                return False
            self._idle = False
            return self._inner.consume(token)
        text = self._tail + self._vocabulary.spelled(token)
        before, found, after = text.partition(self._close)
        if not found:
            self._tail = before[-len(self._close) :]
            return False
        self._idle = False
        # A token may hold the end of the marker and what follows; white space there is not part of the answer.
        complete = False
        for rest in self._vocabulary.tokens_of(after.strip()):
            complete = self._inner.consume(rest)
        return complete
