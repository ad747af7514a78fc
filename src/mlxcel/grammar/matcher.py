"""A sequence under a compiled grammar."""

from __future__ import annotations

import logging
import re
from typing import Any

import numpy as np

from mlxcel.engine.constraint import ConstraintError, Words
from mlxcel.grammar.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_LIMIT = re.compile(r"Current row has \d+ items|Too many items|too many states|[Ll]exer fuel|NoExtensionBias")


class Matcher:
    """Implements `mlxcel.engine.constraint.Constraint`. The mask of the next token is made as soon as a token is known:
    it also tells whether anything may follow.

    state: the grammar engine's matcher, which belongs to this object from now on.
    Raises ConstraintError when no text satisfies the grammar.
    """

    def __init__(self, vocabulary: Vocabulary, state: Any) -> None:
        self._vocabulary = vocabulary
        self._state = state
        self._words = vocabulary.mask_of()
        self._address = self._words.ctypes.data
        self._inner = ~vocabulary.ends
        if self._look_ahead():
            raise ConstraintError("only an empty text satisfies the grammar")

    @property
    def mask(self) -> Words:
        """The tokens that may come next."""
        return self._words

    def consume(self, token: int) -> bool:
        """Note a token; True when the text is complete and nothing may follow. Raises ConstraintError."""
        if not self._state.consume_token(token):
            raise self._failure("the grammar engine failed")
        return self._look_ahead()

    def copy(self) -> Matcher:
        """One that goes on from the same point."""
        return Matcher(self._vocabulary, self._state.deep_copy())

    def _look_ahead(self) -> bool:
        """Make the next mask; True when nothing but the end may follow. Without any token it would be an error."""
        state = self._state
        if not state.is_stopped():  # it is stopped by errors, too
            state.unsafe_compute_mask_ptr(self._address, self._vocabulary.mask_bytes)
        if state.is_error():  # then the mask means nothing
            raise self._failure("the grammar engine failed")
        if state.is_stopped():
            return True
        return state.is_accepting() and not np.bitwise_and(self._words, self._inner).any()

    def _failure(self, what: str) -> ConstraintError:
        # The engine's words may quote the schema or the text. Of a limit they only tell which it was.
        limit = _LIMIT.search(self._state.get_error())
        log.warning("%s%s", what, f": {limit[0]}" if limit else "")
        return ConstraintError(what)
