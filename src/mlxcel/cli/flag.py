"""What a command-line flag is: its spellings, its variables, how its value is read and where it lands."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class FlagError(Exception):
    """The command line or the environment asks for something that cannot be. The message is one clear line."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How the text of a value becomes a value."""

    metavar: str
    """Name of the value in help; empty for a switch, which needs none."""
    parse: Callable[[str], Any]
    """Raises ValueError with the end of the sentence "expects ..."."""


@dataclass(frozen=True, slots=True)
class Inert:
    """The values at which a flag that is not served changes nothing."""

    words: tuple[str, ...] = ()
    any: bool = False
    """Every value is inert."""
    at_most: float | None = None
    """Every number up to this one is inert."""

    def accepts(self, text: str) -> bool:
        """Whether `text` asks for nothing that this program would not do anyway."""
        if self.any or text.lower() in self.words:
            return True
        try:
            number = float(text)
        except ValueError:
            return False
        return (self.at_most is not None and number <= self.at_most) or number in _numbers(self.words)

    def __str__(self) -> str:
        """For the documentation."""
        parts = [f"`{word}`" for word in self.words]
        if self.at_most is not None:
            parts.append(f"up to {self.at_most:g}")
        return "any" if self.any else ", ".join(parts) or "none"


@dataclass(frozen=True, slots=True)
class Unserved:
    """Why a known flag is not served."""

    inert: Inert
    limit: str
    instead: str


@dataclass(frozen=True, slots=True)
class Flag:
    """One row of the flag table."""

    names: tuple[str, ...]
    """Every spelling that turns it on or sets it; the documented long form first."""
    kind: Kind
    section: str
    help: str = ""
    env: tuple[str, ...] = ()
    """Variables that set it, the strongest first."""
    off_names: tuple[str, ...] = ()
    """Spellings that turn a switch off."""
    default: str = ""
    """What holds without it, for people."""
    target: str = ""
    """Where it lands: section and field of ServerConfig, such as `engine.ctx_size`."""
    convert: Callable[[Any], Any] | None = None
    """From the parsed value to the field's; may raise FlagError."""
    adds: bool = False
    """Repetitions and variables add to each other instead of replacing."""
    values: int = 1
    """Words it takes from the command line, unless it is a switch."""
    secret: bool = False
    """The value never appears in a message."""
    unserved: Unserved | None = None

    @property
    def name(self) -> str:
        """The documented spelling."""
        return self.names[0]

    @property
    def is_switch(self) -> bool:
        """True when it needs no value."""
        return not self.kind.metavar

    @property
    def off_env(self) -> tuple[str, ...]:
        """Variables whose mere presence turns a switch with an off spelling off."""
        if not self.off_names:
            return ()
        return tuple(name.replace("_ARG_", "_ARG_NO_") for name in self.env if name.startswith("LLAMA_ARG_"))


def row(
    section: str,
    names: str,
    kind: Kind,
    target: str,
    help: str,
    *,
    default: str = "",
    env: str = "",
    off: str = "",
    convert: Callable[[Any], Any] | None = None,
    adds: bool = False,
    secret: bool = False,
) -> Flag:
    """A served flag; its names, variables and off spellings are written as words."""
    return Flag(
        names=tuple(names.split()),
        kind=kind,
        section=section,
        help=help,
        env=tuple(env.split()),
        off_names=tuple(off.split()),
        default=default,
        target=target,
        convert=convert,
        adds=adds,
        secret=secret,
    )


def _numbers(words: tuple[str, ...]) -> set[float]:
    return {float(word) for word in words if re.fullmatch(r"-?\d+(\.\d+)?", word)}
