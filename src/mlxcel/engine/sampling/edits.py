"""Changes of single logits that are taken back once a token is chosen.

The row stays the model's: log probabilities are read from it, and a copy of it would cost more than all the changes.
"""

from __future__ import annotations

from mlxcel.engine.sampling.candidates import Floats, Ids
from mlxcel.engine.sampling.rows import Rows


class Edits:
    """Changes of one row, float32 [vocabulary], in place."""

    def __init__(self, row: Floats, rows: Rows) -> None:
        self.row = row
        self._rows = rows
        self._before: list[tuple[Ids, Floats]] = []

    def add(self, tokens: Ids, values: Floats) -> None:
        """Add `values` to the logits of `tokens`, each listed once."""
        self._remember(tokens)
        self._rows.add_at(self.row, tokens, values)

    def penalise(self, tokens: Ids, counts: Floats, repetition: float, frequency: float, presence: float) -> None:
        """Lower the logits of `tokens`, as `Rows.penalise` says."""
        self._remember(tokens)
        self._rows.penalise(self.row, tokens, counts, repetition, frequency, presence)

    def undo(self) -> None:
        """Take all changes back."""
        for tokens, logits in reversed(self._before):
            self.row[tokens] = logits
        self._before.clear()

    def _remember(self, tokens: Ids) -> None:
        self._before.append((tokens, self.row[tokens]))
