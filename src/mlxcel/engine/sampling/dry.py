"""DRY, "don't repeat yourself": lower what would go on with a run of tokens that was there before.

Weidmann 2024, text-generation-webui, pull request 5677.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlxcel.engine.backend import Tokenizer
from mlxcel.engine.request import SamplingParams
from mlxcel.engine.sampling.candidates import Ids
from mlxcel.engine.sampling.edits import Edits

MAX_PENALTY = 1e30
"""Larger ones mean no more, and would leave the range of single precision."""


class Dry:
    """What one sequence must know of its tokens, prompt included, to find repeated runs.

    For each earlier position the length of the run that ends there and equals the run at the end of the text. A new
    token makes every run longer that it also goes on with, and ends all others. A breaker ends all runs.
    """

    def __init__(self, params: SamplingParams, prompt: tuple[int, ...], tokenizer: Tokenizer) -> None:
        self._params = params
        self._tokenizer = tokenizer
        breakers = params.dry_sequence_breakers
        self._break_tokens = frozenset(breaker for breaker in breakers if isinstance(breaker, int))
        self._break_texts = tuple(breaker.encode() for breaker in breakers if isinstance(breaker, str) and breaker)
        self._text_kept = max(map(len, self._break_texts), default=1) - 1  # bytes in which a breaker may have begun
        self._text = b""
        self._length = 0
        self._tokens: Ids = np.empty(64, np.int64)
        self._runs: npt.NDArray[np.int32] = np.zeros(65, np.int32)  # [i + 1]: of position i; [0]: none, always
        if self.enabled:
            self._read(prompt)

    @property
    def enabled(self) -> bool:
        """False when the penalty is off."""
        return self._params.dry_multiplier > 0.0

    def append(self, token: int) -> None:
        """Note a generated token."""
        self._reserve(self._length + 1)
        start, end = self._start(), self._length
        if self._breaks(token):
            self._runs[:] = 0
        else:
            self._runs[start + 1 : end + 1] = (self._runs[start:end] + 1) * (self._tokens[start:end] == token)
        self._tokens[end] = token
        self._length += 1

    def apply(self, edits: Edits) -> None:
        """Change a row."""
        repeats = self.repeats()
        if repeats:
            penalties = [-self._penalty(length) for length in repeats.values()]
            edits.add(np.array(list(repeats)), np.array(penalties, np.float32))

    def repeats(self) -> dict[int, int]:
        """Tokens that would go on with an earlier run of at least the allowed length, and the length of the longest
        such run."""
        start, last = self._start(), max(self._length - 1, 0)
        runs = self._runs[start + 1 : last + 1]
        if start:  # a run reaches back to the start of the window at most
            runs = np.minimum(runs, np.arange(1, last - start + 1, dtype=np.int32))
        found = np.flatnonzero(runs >= max(self._params.dry_allowed_length, 1))
        if not found.shape[0]:
            return {}
        found = found[np.argsort(runs[found], kind="stable")]  # of one token's runs the longest is noted last
        return dict(zip(self._tokens[start + 1 + found].tolist(), runs[found].tolist(), strict=True))

    def _penalty(self, length: int) -> float:
        params = self._params
        try:
            return min(
                params.dry_multiplier * float(params.dry_base) ** (length - params.dry_allowed_length), MAX_PENALTY
            )
        except OverflowError:
            return MAX_PENALTY

    def _start(self) -> int:
        """Where the window begins."""
        window = self._params.dry_penalty_last_n
        return max(0, self._length - window) if window > 0 else 0

    def _reserve(self, length: int) -> None:
        if length <= self._tokens.shape[0]:
            return
        size = max(length, 2 * self._tokens.shape[0])
        self._tokens = np.concatenate((self._tokens, np.empty(size - self._tokens.shape[0], np.int64)))
        self._runs = np.concatenate((self._runs, np.zeros(size + 1 - self._runs.shape[0], np.int32)))

    def _breaks(self, token: int) -> bool:
        """Whether a breaker ends with this token."""
        known = len(self._text)
        self._text += self._tokenizer.token_bytes(token)
        # A short breaker may lie in what was kept for a longer one: it has had its effect.
        found = token in self._break_tokens or any(
            self._text.find(text, max(0, known - len(text) + 1)) >= 0 for text in self._break_texts
        )
        self._text = self._text[-self._text_kept :] if self._text_kept else b""
        return found

    def _read(self, prompt: tuple[int, ...]) -> None:
        """Begin with the tokens of a prompt."""
        window = self._params.dry_penalty_last_n
        prompt = prompt[-window:] if window > 0 else prompt
        self._length = len(prompt)
        self._reserve(self._length)
        self._tokens[: self._length] = prompt
        since = self._since_breaker(prompt)
        if since:
            lengths = np.minimum(_common_beginnings(prompt[::-1]), since)
            self._runs[1 : self._length] = lengths[:0:-1]

    def _since_breaker(self, prompt: tuple[int, ...]) -> int:
        """How many tokens come after the last breaker."""
        since = next((i for i, token in enumerate(reversed(prompt)) if token in self._break_tokens), len(prompt))
        pieces = [self._tokenizer.token_bytes(token) for token in prompt]
        text = b"".join(pieces)
        end = max((text.rfind(breaker) + len(breaker) for breaker in self._break_texts if breaker in text), default=0)
        if end:
            broken = int(np.searchsorted(np.cumsum([len(piece) for piece in pieces]), end))  # where its last byte is
            since = min(since, len(prompt) - 1 - broken)
        self._text = text[-self._text_kept :] if self._text_kept else b""
        return since


def _common_beginnings(tokens: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """For each position, how many tokens from there on are those at the beginning (Gusfield 1997, the Z algorithm)."""
    n = len(tokens)
    lengths = [n] + [0] * (n - 1)
    left = right = 0  # the part known to equal a beginning that reaches farthest
    for i in range(1, n):
        length = min(right - i, lengths[i - left]) if i < right else 0
        while i + length < n and tokens[length] == tokens[i + length]:
            length += 1
        lengths[i] = length
        if i + length > right:
            left, right = i, i + length
    return np.array(lengths, np.int32)
