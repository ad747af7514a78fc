"""How much work one template rendering may do, and how large a value it may build.

A chat template comes with a checkpoint, so it is foreign code. The Jinja sandbox keeps it away from Python's
internals; the classes here keep it from taking all time or all memory. Time is cut by counting: every loop turn,
call and operator charges the budget. Memory is kept by looking before an operation that can multiply its input.
"""

from __future__ import annotations

import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from string import Formatter
from typing import Any, cast

from jinja2.exceptions import SecurityError

_NUMBER_SIZE = 32
"""Characters a number, a constant or any other small value is counted with."""
_MAX_FIELD_WIDTH = 9999
_MAX_INT_BITS = 1 << 14
_WIDE_BRACES = re.compile(r"\d{5,}|\{")
# After a `%`, or after the `)` of a named field. A `*` takes its width from the arguments.
_WIDE_PERCENT = re.compile(r"[%)][#0\- +]*(?:\d{5,}|\d{0,4}\.\d{5,})|%[#0\- +]*\d{0,4}\.?\*")
_SIZED_PERCENT = re.compile(r"[%)][#0\- +]*[\d.]")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one rendering. The defaults leave room for prompts far beyond any context window."""

    text: int = 16 << 20
    """Characters of one string, items of one list, and characters of the whole output."""
    work: int = 512 << 20
    """Units of work: loop turns and calls, plus the characters and items they produce."""
    seconds: float = 5.0
    """Processor time of the rendering thread, so that a busy machine does not fail a sound template."""


class Budget:
    """What is left of the limits of one rendering."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._work = limits.work
        self._deadline = time.thread_time() + limits.seconds

    def charge(self, units: int = 1) -> None:
        """Count `units` of work. Raises SecurityError when the rendering has used up its share."""
        self._work -= units
        if self._work < 0 or time.thread_time() > self._deadline:
            raise SecurityError("the chat template does too much work")

    def check_size(self, size: int) -> None:
        """Raise SecurityError when a value of `size` characters or items is too large."""
        if size > self.limits.text:
            raise SecurityError("the chat template builds a value that is too large")

    def reserve(self, size: int) -> None:
        """Check and count a value of `size` that is about to be built."""
        self.check_size(size)
        self.charge(size)


_current: ContextVar[Budget] = ContextVar("template_budget")


@contextmanager
def limited(limits: Limits) -> Generator[Budget]:
    """Make a new budget the current one for the block."""
    budget = Budget(limits)
    token = _current.set(budget)
    try:
        yield budget
    finally:
        _current.reset(token)


def current_budget() -> Budget:
    """The budget of the rendering that runs in this context."""
    return _current.get()


def text_size(value: Any) -> int:
    """Upper estimate of the characters of `value` written as text.

    A container that holds the same object many times counts it as many times, but is walked once: the estimate is
    quick also where the text would be exponentially long.
    """
    return _text_size(value, {})


def _text_size(value: Any, seen: dict[int, int]) -> int:
    if isinstance(value, (str, bytes)):
        return len(value) + 2
    items: list[Any]
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        items = [*mapping.keys(), *mapping.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        items = list(cast(Sequence[Any], value))
    else:
        return _NUMBER_SIZE
    identity = id(cast(object, value))
    known = seen.get(identity)
    if known is None:
        known = 2 + sum(2 + _text_size(item, seen) for item in items)
        seen[identity] = known
    return known


def check_product(left: Any, right: Any) -> None:
    """Refuse `left * right` where it would be too large: repeated sequences and very long integers."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(left, int):
        left, right = right, left
    if isinstance(right, int) and isinstance(left, (str, bytes, list, tuple)):
        current_budget().reserve(len(cast(Sequence[Any], left)) * max(right, 0))


def check_power(base: Any, exponent: Any) -> None:
    """Refuse an integer power with too many digits."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        _check_bits(base.bit_length() * exponent)


def _check_bits(bits: int) -> None:
    if bits > _MAX_INT_BITS:
        raise SecurityError("the chat template builds a number that is too large")


def check_width(value: Any, widths: Sequence[Any]) -> None:
    """Refuse padding of `value` to a width that is too large."""
    widest = max((abs(width) for width in widths if isinstance(width, int)), default=0)
    current_budget().reserve(max(text_size(value), widest))


def check_indent(text: str, width: Any) -> None:
    """Refuse an indentation whose result would be too long. `width`: spaces, or the prefix itself."""
    per_line = len(width) if isinstance(width, str) else width if isinstance(width, int) else 0
    current_budget().reserve(len(text) + (text.count("\n") + 1) * max(per_line, 0))


def check_replace(text: str, old: str, new: str) -> None:
    """Refuse a replacement whose result would be too long."""
    current_budget().reserve(len(text) + text.count(old) * len(new))


def check_join(separator: str, items: Sequence[Any]) -> None:
    """Refuse a join whose result would be too long."""
    current_budget().reserve(sum(text_size(item) + len(separator) for item in items))


def check_percent_format(pattern: str, values: Any) -> None:
    """Refuse `pattern % values` where widths or repeated fields would make the result too long."""
    _check_fields(
        len(pattern),
        fields=pattern.count("%"),
        values=values,
        padded=_SIZED_PERCENT.search(pattern) is not None,
        too_wide=_WIDE_PERCENT.search(pattern) is not None,
    )


def check_brace_format(pattern: str, values: Any) -> None:
    """Refuse `pattern.format(...)` where widths or repeated fields would make the result too long."""
    specs = [spec or "" for _, name, spec, _ in Formatter().parse(pattern) if name is not None]
    _check_fields(
        len(pattern),
        fields=len(specs),
        values=values,
        padded=any(specs),
        too_wide=any(_WIDE_BRACES.search(spec) for spec in specs),
    )


def _check_fields(literal: int, *, fields: int, values: Any, padded: bool, too_wide: bool) -> None:
    if too_wide:
        raise SecurityError("the chat template formats with a width that is too large")
    widest = text_size(values) + (_MAX_FIELD_WIDTH if padded else 0)
    current_budget().reserve(literal + fields * widest)
