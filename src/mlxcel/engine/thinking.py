"""Where a sequence thinks: which of its tokens stand inside a reasoning block, and when the block must end.

This follows markers through the tokens' bytes, as the model wrote them. It changes no text: what is shown as reasoning
is decided where the text is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.needle import Needle


@dataclass(frozen=True, slots=True)
class ThinkingRule:
    """How a model marks its reasoning, and how long it may be."""

    opens: tuple[str, ...]
    """Any of these begins a block."""
    closes: tuple[str, ...]
    """Any of these ends one; the first is what a block is ended with."""
    inside: bool = False
    """The prompt has opened a block."""
    budget: int | None = None
    """Tokens that the first block may have; None: any number."""
    spelling: Mapping[int, str] = field(default_factory=dict[int, str])
    """Text of the special tokens among the markers, which have none of their own."""
    leading: bool = False
    """Only a block at the very beginning is one. For an answer under a constraint, where markers are data."""


class Thinking:
    """State of one sequence."""

    def __init__(self, rule: ThinkingRule, tokenizer: Tokenizer) -> None:
        self.inside = rule.inside
        """Whether the next token stands in a block."""
        self.tokens = 0
        """Tokens that stood in one, the last token of its end not counted."""
        self._tokenizer = tokenizer
        self._spelling = {token: text.encode() for token, text in rule.spelling.items()}
        # Bytes as characters: a marker is found whatever else a token holds, half a character included.
        self._opens = [Needle(text.encode().decode("latin-1")) for text in rule.opens]
        self._closes = [Needle(text.encode().decode("latin-1")) for text in rule.closes]
        self._end = rule.closes[0] if rule.closes else ""
        self._budget = rule.budget
        self._leading = rule.leading
        self._forced: deque[int] = deque()
        self._force_end()

    @property
    def forced(self) -> int | None:
        """The token that must come next, whatever is drawn; None: the one that is drawn."""
        return self._forced[0] if self._forced else None

    def push(self, token: int) -> None:
        """Note a generated token."""
        if self._forced:
            self._forced.popleft()
        was_inside = self.inside
        for character in (self._spelling.get(token) or self._tokenizer.token_bytes(token)).decode("latin-1"):
            completed = [needle.advance(character) for needle in self._expected]
            if any(completed):
                self.inside = not self.inside
                for needle in self._expected:
                    needle.restart()
                if not self.inside:
                    self._budget = None  # it is for the first block
            if self._leading and not self.inside and not any(needle.matched for needle in self._opens):
                self._opens.clear()
        if self.inside:
            self.tokens += was_inside
            self._force_end()

    @property
    def _expected(self) -> Sequence[Needle]:
        return self._closes if self.inside else self._opens

    def _force_end(self) -> None:
        if self._budget is None or not self.inside or self.tokens < self._budget:
            return
        self._budget = None
        written = self._closes[0].matched if self._closes else 0  # the model has begun to end it by itself
        self._forced.extend(self._tokenizer.encode(self._end[written:], add_special=False, parse_special=True))
