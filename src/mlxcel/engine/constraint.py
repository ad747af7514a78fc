"""What limits the tokens that a sequence may say: the engine's side of structured output.

The engine asks for a mask before each token and tells which token came. What the rule is, it never learns.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
"""A bit for each token, 32 to a word from the lowest bit on; at least as many as the model has tokens."""


class ConstraintError(Exception):
    """A sequence cannot go on under its constraint. The message holds nothing of the rule."""


class Constraint(Protocol):
    """The state of one sequence under a rule. Touched by the worker thread only."""

    @property
    def mask(self) -> Words | None:
        """The tokens that may come next; None: all. Not written to before the next `consume`. Raises
        ConstraintError."""
        ...

    def consume(self, token: int) -> bool:
        """Note a token, each exactly once; True when the text is complete and nothing may follow.

        Tokens that end a text are not for it: they end the sequence. Raises ConstraintError, also when no token may
        come next.
        """
        ...


class Rule(Protocol):
    """What several sequences may be held to."""

    def begin(self) -> Constraint:
        """The state before the first token."""
        ...
