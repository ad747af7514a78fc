"""Command line and environment, read by a table of flags."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxcel.cli.flag import Flag, FlagError


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that was given for a flag."""

    flag: Flag
    value: Any
    source: str
    """The flag as it was spelled, or the variable."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """Everything that was given, after precedence."""

    settings: Sequence[Setting] = ()
    """In the order of the flag table; several of one flag only where they add up."""
    operands: Sequence[str] = ()
    """Words that belong to no flag."""

    def get(self, name: str, default: Any = None) -> Any:
        """The value of the flag `name`."""
        return next((setting.value for setting in self.settings if setting.flag.name == name), default)

    def __contains__(self, name: str) -> bool:
        """Whether the flag `name` was given."""
        return any(setting.flag.name == name for setting in self.settings)


def parse(argv: Sequence[str], flags: Iterable[Flag], environ: Mapping[str, str], *, operands: int = 0) -> Arguments:
    """Read `argv` and `environ` by the table `flags`.

    A flag on the command line beats its variables; the first variable that is set beats the next; variables set to
    nothing count as absent. operands: how many plain words the command takes.
    Raises FlagError for anything unknown, malformed or not served.
    """
    table = list(flags)
    given, plain = _scan(argv, {name: flag for flag in table for name in (*flag.names, *flag.off_names)})
    if len(plain) > operands:
        raise FlagError(f"unexpected argument {plain[operands]!r}")
    settings: list[Setting] = []
    for flag in table:
        texts = given.get(flag.name, [])
        if not texts or flag.adds:
            texts = [*texts, *_from_environment(flag, environ)]
        read = [Setting(flag, _read(flag, text, source), source) for source, text in texts]
        settings += read if flag.adds else read[-1:]
    return Arguments(settings, plain)


_Given = dict[str, list[tuple[str, str]]]


def _scan(argv: Sequence[str], spellings: Mapping[str, Flag]) -> tuple[_Given, list[str]]:
    """Flags with the texts given for them (spelling, text), and the words that belong to no flag."""
    given: _Given = {}
    plain: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--":
            plain += words
            break
        if not word.startswith("-") or word == "-":
            plain.append(word)
            continue
        spelling, equals, attached = word.partition("=")
        if spelling.startswith("--"):
            spelling = spelling.replace("_", "-")
        flag = spellings.get(spelling)
        if flag is None:
            raise FlagError(_unknown(spelling, spellings))
        if flag.is_switch:
            text = _switch_text(flag, spelling, attached if equals else None)
        elif equals:
            text = attached
        else:
            text = " ".join(_next_value(words, spelling, spellings) for _ in range(flag.values))
        given.setdefault(flag.name, []).append((spelling, text))
    return given, plain


def _switch_text(flag: Flag, spelling: str, attached: str | None) -> str:
    if spelling not in flag.off_names:
        return "on" if attached is None else attached
    if attached is not None:
        raise FlagError(f"{spelling} takes no value")
    return "off"


def _next_value(words: Iterator[str], spelling: str, spellings: Mapping[str, Flag]) -> str:
    value = next(words, None)
    if value is None or value.partition("=")[0] in spellings:
        raise FlagError(f"{spelling} expects a value")
    return value


def _from_environment(flag: Flag, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """What the variables of a flag say: at most one value, or all of them where values add up."""
    found = [(name, environ[name]) for name in flag.env if environ.get(name)]
    found += [(name, "off") for name in flag.off_env if name in environ]
    return found if flag.adds else found[:1]


def _read(flag: Flag, text: str, source: str) -> Any:
    try:
        value = flag.kind.parse(text)
    except ValueError as error:
        raise FlagError(f"{source} expects {error}, not {_shown(flag, text)}") from error
    if flag.unserved and not flag.unserved.inert.accepts(_canonical(flag, text, value)):
        asked = source if flag.is_switch and source.startswith("-") else f"{source} {_shown(flag, text)}"
        raise FlagError(f"{asked} is not served: {flag.unserved.limit}; {flag.unserved.instead}")
    return value


def _canonical(flag: Flag, text: str, value: Any) -> str:
    """One word for the many spellings of on, off and nothing."""
    if flag.is_switch:
        return "on" if value else "off"
    return "none" if value is None else text


def _shown(flag: Flag, text: str) -> str:
    return "the given value" if flag.secret else repr(text)


def _unknown(spelling: str, spellings: Mapping[str, Flag]) -> str:
    # Single-dash spellings are left out: a close match on a letter or two is a guess.
    long = [name for name in spellings if name.startswith("--")]
    served = [name for name in long if not spellings[name].unserved]
    for names in (served, long):
        if close := difflib.get_close_matches(spelling, names, n=1, cutoff=0.75):
            return f"unknown flag {spelling}; did you mean {close[0]}?"
    return f"unknown flag {spelling}; see --help"
