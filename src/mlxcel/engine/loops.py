"""Loop detection: end a generation that says the same over and over."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

VARIABLE = "MLXCEL_LOOP_DETECTION"
"""Environment variable with the policy of a server."""

_MOST_TOKENS = 2**62
"""More than any text has, and few enough for 64 bits."""

_OFF = frozenset({"off", "0", "none", "false", "disabled"})
_ON = frozenset({"on", "default", "true", "enabled"})
_RULE = re.compile(r"(\d+)\s*[,:]\s*(\d+)\s*[,:]\s*(\d+)")


@dataclass(frozen=True, slots=True)
class LoopRule:
    """End when the last tokens are `count` copies of the same `min_size` to `max_size` tokens.

    A `max_size` of 0 or a `count` below 2 is off; a `min_size` of 0 means 1, and above `max_size` means that.
    """

    min_size: int
    max_size: int
    count: int

    @property
    def active(self) -> bool:
        """Whether any text can meet the rule."""
        return self.max_size > 0 and self.count >= 2


DEFAULT_RULE = LoopRule(1, 20, 4)


def server_rule(variable: str | None, architecture: str) -> LoopRule | None:
    """The rule of requests that name none.

    variable: value of `MLXCEL_LOOP_DETECTION`; one that cannot be read is ignored with a warning.
    architecture: the checkpoint's `model_type`. The Gemma 4 family has the default rule, others have none.
    """
    word = (variable or "").strip().lower()
    if word in _OFF:
        return None
    if word in _ON:
        return DEFAULT_RULE
    if match := _RULE.fullmatch(word):
        rule = LoopRule(*map(int, match.groups()))
        return rule if rule.active else None
    if word:
        log.warning("%s=%r is ignored: it is neither on, off nor MIN,MAX,COUNT", VARIABLE, variable)
    return DEFAULT_RULE if architecture.startswith("gemma4") else None


class LoopDetector:
    """Watches the tokens of one sequence.

    budget: tokens that may come; longer patterns than fit into it need not be looked for. It may be without measure,
    so what is held grows with the text alone.
    """

    def __init__(self, rule: LoopRule, budget: int) -> None:
        budget = min(budget, _MOST_TOKENS)
        self._largest = min(rule.max_size, budget // rule.count) if rule.active else 0
        self._smallest = min(max(rule.min_size, 1), max(rule.max_size, 1), self._largest + 1)
        self._copies = min(rule.count, budget + 1) - 1  # beside the last one; more of them have no size
        self._tokens: npt.NDArray[np.int64] = np.empty(64, np.int64)
        # For each size from the smallest on: how many of the last tokens equal the one so far before.
        self._runs: npt.NDArray[np.int64] = np.zeros(64, np.int64)
        self._length = 0

    def push(self, token: int) -> bool:
        """Note a generated token; True when the text ends in a loop."""
        if self._length == self._tokens.shape[0]:
            self._tokens = np.concatenate((self._tokens, self._tokens))
            self._runs = np.concatenate((self._runs, np.zeros_like(self._runs)))
        self._tokens[self._length] = token
        sizes = np.arange(self._smallest, min(self._largest, self._length) + 1)
        runs = self._runs[: sizes.shape[0]]
        np.multiply(runs + 1, self._tokens[self._length - sizes] == token, out=runs)
        self._length += 1
        return bool((runs >= sizes * self._copies).any())
