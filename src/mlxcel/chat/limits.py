"""How much work one template rendering may do, and how large a value it may build.

A chat template comes with a checkpoint, so it is foreign code. The Jinja sandbox keeps it away from Python's
internals; the classes here keep it from taking all time or all memory. Time is cut by counting: every loop turn,
call and operator charges the budget. Memory is kept by looking before an operation that can multiply its input, and
by looking at the process once a rendering has made more than it could keep.
"""

from __future__ import annotations

import os
import re
import resource
import sys
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
_ITEM_SIZE = 64
"""Bytes an item of a list, with the small value it may hold, is counted with."""
_ITEM_SHARE = 8
"""Lists may have so many times fewer items than strings have characters."""
_BETWEEN_LOOKS = 4 << 20
_SECONDS_PER_CHARACTER = 2e-5
_MAX_EXTRA_SECONDS = 10.0
_MAX_FIELD_WIDTH = 9999
_MAX_INT_BITS = 1 << 14
_WIDE_BRACES = re.compile(r"\d{5,}|\{")
# After a `%`, or after the `)` of a named field. A `*` takes its width from the arguments.
_WIDE_PERCENT = re.compile(r"[%)][#0\- +]*(?:\d{5,}|\d{0,4}\.\d{5,})|%[#0\- +]*\d{0,4}\.?\*")
_SIZED_PERCENT = re.compile(r"[%)][#0\- +]*[\d.]")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one rendering of a small conversation. `for_input` widens them for a large one."""

    text: int = 8 << 20
    """Characters of one string, and of the whole output. Lists and dicts may have an eighth as many items."""
    work: int = 8 << 30
    """Units of work: loop turns and calls, plus the characters and items they produce."""
    seconds: float = 2.0
    """Processor time of the rendering thread, so that a busy machine does not fail a sound template."""
    memory: int = 128 << 20
    """Bytes by which the process may grow while the rendering makes values of more than as many bytes in all."""

    def for_input(self, size: int) -> Limits:
        """The limits for a conversation of `size` characters.

        Some templates walk every character of a message, which takes some microseconds each, and copy texts many times.
        """
        return Limits(
            text=self.text + 4 * size,
            work=self.work,
            seconds=self.seconds + min(_SECONDS_PER_CHARACTER * size, _MAX_EXTRA_SECONDS),
            memory=self.memory + 16 * size,
        )


class Budget:
    """What is left of the limits of one rendering."""

    def __init__(self, limits: Limits) -> None:
        self._begun = time.thread_time()
        self._spent = 0
        self._resident = _resident_memory()
        self._given: dict[int, int] = {}
        self._limits = limits
        self._looked = limits.memory

    def give(self, values: Mapping[str, Any]) -> None:
        """Widen the limits for the input `values`, which stay as they are and are measured only once."""
        size = _text_size(values, self._given, {})
        self._limits = self._limits.for_input(size)
        self._looked = self._limits.memory

    def is_given(self, value: object) -> bool:
        """Whether a container is part of the input."""
        return id(value) in self._given

    def text_size(self, value: Any) -> int:
        """`text_size` that does not walk the input again."""
        return _text_size(value, {}, self._given)

    def charge(self, units: int = 1) -> None:
        """Count `units` of work. Raises SecurityError when the rendering has used up its share."""
        self._spent += units
        if self._spent > self._limits.work or time.thread_time() - self._begun > self._limits.seconds:
            raise SecurityError("the chat template does too much work")
        if self._spent > self._looked:
            self._looked = self._spent + _BETWEEN_LOOKS
            if _resident_memory() - self._resident > self._limits.memory:
                raise SecurityError("the chat template takes too much memory")

    def check_size(self, size: int) -> None:
        """Raise SecurityError when a value of `size` characters is too large."""
        if size > self._limits.text:
            raise SecurityError("the chat template builds a value that is too large")

    def reserve(self, size: int) -> None:
        """Check and count a value of `size` characters that is about to be built."""
        self.check_size(size)
        self.charge(size)

    def reserve_items(self, count: int) -> None:
        """Check and count a list or dict of `count` items."""
        self.check_size(count * _ITEM_SHARE)
        self.charge(count * _ITEM_SIZE)

    def check_container(self, value: Any) -> None:
        """Refuse a list, tuple or dict whose whole text would be too large: comparing it takes as many steps."""
        if isinstance(value, (list, tuple, dict)) and not self.is_given(cast(object, value)):
            self.check_size(self.text_size(value))

    def count(self, value: Any) -> None:
        """Check and count a value that has been built."""
        if isinstance(value, str):
            self.check_size(len(value))
            self.charge(sys.getsizeof(value))
        elif isinstance(value, (list, tuple, dict)):
            self.reserve_items(len(cast(Sequence[Any], value)))


def _resident_memory() -> int:
    """Bytes of memory the process takes; where the system does not tell, the most it has taken."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
    """`Budget.text_size` of the rendering that runs."""
    return current_budget().text_size(value)


def _text_size(value: Any, seen: dict[int, int], known: Mapping[int, int]) -> int:
    """Upper estimate of the characters of `value` written as text.

    A container that holds the same object many times counts it as many times, but is walked once: the estimate is
    quick also where the text would be exponentially long.
    """
    if isinstance(value, (str, bytes)):
        return len(value) + 2
    if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
        return _NUMBER_SIZE
    identity = id(cast(object, value))
    size = known.get(identity) or seen.get(identity)
    if size is None:
        items: list[Any] = list(cast(Sequence[Any], value))
        if isinstance(value, Mapping):
            items += cast(Mapping[Any, Any], value).values()
        size = 2 + sum(2 + _text_size(item, seen, known) for item in items)
        seen[identity] = size
    return size


def check_product(left: Any, right: Any) -> None:
    """Refuse `left * right` where it would be too large: repeated sequences and very long integers."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(left, int):
        left, right = right, left
    if isinstance(right, int) and isinstance(left, (str, bytes)):
        current_budget().reserve(len(left) * max(right, 0))
    elif isinstance(right, int) and isinstance(left, (list, tuple)):
        current_budget().reserve_items(len(cast(Sequence[Any], left)) * max(right, 0))


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


def check_pieces(text: str, separators: re.Pattern[str]) -> None:
    """Refuse to cut `text` at so many places that the pieces would take much memory."""
    found = 0
    for found, _ in enumerate(separators.finditer(text), 1):
        if found % 4096 == 0:
            current_budget().reserve_items(found)
    current_budget().reserve_items(found + 1)


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
