"""The text that `--help` prints, written from the flag table."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Iterator
from itertools import groupby

from mlxcel.cli.flag import Flag

_INDENT = 32


def usage(synopsis: str, summary: str, flags: Iterable[Flag], *, note: str = "") -> str:
    """Help of one command: what it is, its flags by section, a closing note."""
    width = max(60, min(shutil.get_terminal_size().columns, 110))
    blocks = [f"usage: {synopsis}", *textwrap.wrap(summary, width)]
    for section, rows in groupby((flag for flag in flags if not flag.unserved), key=lambda flag: flag.section):
        blocks += ["", f"{section}:"]
        for flag in rows:
            blocks += _entry(flag, width)
    if note:
        blocks += ["", *textwrap.wrap(note, width)]
    return "\n".join(blocks) + "\n"


def spelling(flag: Flag) -> str:
    """All spellings of a flag and the name of its value."""
    names = ", ".join((*flag.names, *flag.off_names))
    return f"{names} {flag.kind.metavar}".rstrip()


def _entry(flag: Flag, width: int) -> Iterator[str]:
    facts = [flag.help]
    if flag.default:
        facts.append(f"(default: {flag.default})")
    if flag.env:
        facts.append(f"[{', '.join(flag.env)}]")
    lines = textwrap.wrap(" ".join(facts), width - _INDENT, break_on_hyphens=False)
    head = f"  {spelling(flag)}"
    if len(head) < _INDENT:
        yield f"{head:<{_INDENT}}{lines.pop(0)}"
    else:
        yield head
    yield from (" " * _INDENT + line for line in lines)
