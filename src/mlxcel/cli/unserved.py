"""How the table names flags that are known but not served."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlxcel.cli.flag import Flag, Inert, Unserved
from mlxcel.cli.values import SIZE, SWITCH, text


@dataclass(frozen=True, slots=True)
class Row:
    """A flag that is not served, in words.

    names: spellings; those after `|` turn a switch off. value: name of its value; empty for a switch, SIZE for a size.
    inert: values that change nothing; `*` is any, `<=N` any number up to N.
    """

    names: str
    value: str = ""
    inert: str = ""
    env: str = ""
    values: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """Flags with one reason not to be served."""

    section: str
    limit: str
    instead: str
    rows: tuple[Row, ...]

    def flags(self) -> Iterator[Flag]:
        """The rows as entries of the flag table."""
        return (_flag(self, row) for row in self.rows)


def _flag(group: Group, row: Row) -> Flag:
    on, _, off = row.names.partition("|")
    return Flag(
        names=tuple(on.split()),
        kind=SIZE if row.value == "SIZE" else text(row.value) if row.value else SWITCH,
        section=group.section,
        env=tuple(row.env.split()),
        off_names=tuple(off.split()),
        values=row.values,
        unserved=Unserved(_inert(row.inert), group.limit, group.instead),
    )


def _inert(words: str) -> Inert:
    bound = re.fullmatch(r"<=(\S+)", words)
    if bound:
        return Inert(at_most=float(bound[1]))
    return Inert(any=words == "*", words=() if words == "*" else tuple(words.split()))
