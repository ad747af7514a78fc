"""How values are read from text, and how they become what the configuration holds."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from typing import Any, cast

from mlxcel.cli.flag import FlagError, Kind

_TRUE = frozenset({"on", "enabled", "true", "1"})
_FALSE = frozenset({"off", "disabled", "false", "0"})
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]?)b?", re.IGNORECASE)
_BIAS = re.compile(r"(?P<token>\d+)(?P<bias>[+-]\d+(?:\.\d+)?|-inf)")
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\\": "\\"}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_switch(text: str) -> bool:
    """The words for on and off that llama.cpp's tools share. Raises ValueError."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("on, enabled, true, 1, off, disabled, false or 0")


def parse_size(text: str) -> int | None:
    """Bytes, with an optional K, M or G (powers of 1024); None for 0, `none` and nothing. Raises ValueError."""
    word = text.strip().lower()
    if word in {"", "none"}:
        return None
    match = _SIZE.fullmatch(word)
    if not match or ("." in match["number"] and not match["unit"]):
        raise ValueError("a number of bytes, such as 1048576, 512M or 1.5G")
    return int(float(match["number"]) * _UNITS[match["unit"].lower()]) or None


def parse_words(text: str) -> tuple[str, ...]:
    """A comma list without blanks and empty items."""
    return tuple(word for word in (part.strip() for part in text.split(",")) if word)


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises ValueError."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return cast("dict[str, Any]", value)


def integer(metavar: str = "N", *, least: int | None = None, most: int | None = None) -> Kind:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or (least is not None and value < least) or (most is not None and value > most):
            raise ValueError(f"a whole number{_bounds(least, most)}")
        return value

    return Kind(metavar, parse)


def number(metavar: str = "X", *, least: float | None = None, most: float | None = None) -> Kind:
    """A finite number within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        low, high = (-math.inf if least is None else least), (math.inf if most is None else most)
        if not math.isfinite(value) or not low <= value <= high:
            raise ValueError(f"a number{_bounds(least, most)}")
        return value

    return Kind(metavar, parse)


def choice(*words: str) -> Kind:
    """One of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(" or ".join(words))
        return text

    return Kind("|".join(words), parse)


def text(metavar: str) -> Kind:
    """Any text but the empty one."""

    def parse(value: str) -> str:
        if not value:
            raise ValueError("a value that is not empty")
        return value

    return Kind(metavar, parse)


def words(metavar: str) -> Kind:
    """A comma list with at least one item."""

    def parse(value: str) -> tuple[str, ...]:
        if items := parse_words(value):
            return items
        raise ValueError("a comma list that is not empty")

    return Kind(metavar, parse)


def path(metavar: str = "FILE") -> Kind:
    """A path; `~` is the home directory."""

    def parse(value: str) -> Path:
        if not value or "\0" in value:
            raise ValueError("a path")
        try:
            return Path(value).expanduser()
        except RuntimeError as error:
            raise ValueError("a path below the home directory of a known user") from error

    return Kind(metavar, parse)


def parse_kv_budget(text: str) -> int | str | None:
    """`auto`, or bytes as `parse_size` reads them. Raises ValueError."""
    if text.strip().lower() == "auto":
        return "auto"
    try:
        return parse_size(text)
    except ValueError as error:
        raise ValueError(f"auto, none or {error}") from error


def parse_bias(text: str) -> tuple[tuple[int, float], ...]:
    """A token id and, after its sign, what is added to its logit. Raises ValueError."""
    if match := _BIAS.fullmatch(text.strip()):
        return ((int(match["token"]), float(match["bias"])),)
    raise ValueError("a token id and a bias with its sign, such as 42+1, 42-1.5 or 42-inf")


BIAS = Kind("ID+X|ID-X", parse_bias)
SWITCH = Kind("", parse_switch)
ON_OFF = Kind("on|off", parse_switch)
KV_BUDGET = Kind("BYTES|auto|none", parse_kv_budget)
OBJECT = Kind("JSON", parse_object)
SIZE = Kind("SIZE", parse_size)


def _bounds(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least:g} to {most:g}"
    if least is not None:
        return f" of at least {least:g}"
    return f" of at most {most:g}" if most is not None else ""


def auto_parallel(slots: int) -> int:
    if slots == 0:
        raise FlagError("--parallel expects -1 or at least 1, not 0")
    return 4 if slots < 0 else slots


def ping_interval(seconds: float) -> float:
    if -1 < seconds <= 0:
        raise FlagError("--sse-ping-interval expects seconds above 0, or -1 for none")
    return seconds


def not_negative(value: float) -> float:
    return max(0.0, value)


def breaker(value: str) -> tuple[str, ...]:
    r"""A text in which \n, \t, \r and \\ stand for what shells make hard to type."""
    return (re.sub(r"\\[ntr\\]", lambda match: _ESCAPES[match[0]], value),)


def budget(tokens: int) -> int:
    if tokens == 0:
        raise FlagError("--predict expects -1 or at least 1, not 0")
    return tokens


def cache_mebibytes(mebibytes: int) -> int:
    return sys.maxsize if mebibytes < 0 else mebibytes << 20


def kv_bits(bits: int) -> int:
    if bits == 7:
        raise FlagError("--kv-bits expects 2, 3, 4, 5, 6 or 8, not 7")
    return bits


def installed_hash(name: str) -> str:
    if name != "sha256" and importlib.util.find_spec(name) is None:
        raise FlagError(f"--apc-hash {name} needs the Python package {name}, which is not installed; sha256 needs none")
    return name


def seed(value: int) -> int | None:
    return None if value < 0 else value


def on_off_auto(word: str) -> bool | None:
    return {"on": True, "off": False}.get(word)


def reasoning_format(word: str) -> str:
    return "deepseek" if word == "auto" else word


def api_prefix(value: str) -> str:
    return "/" + value.strip("/") if value.strip("/") else ""


def template_source(value: str) -> str:
    if "{" not in value:
        raise FlagError(
            f"--chat-template takes the text of a template, not the name of one ({value!r}); "
            "leave it out to use the model's own, or use --chat-template-file"
        )
    return value


def read_text(file: Path) -> str:
    """The text of a file named by a flag. Raises FlagError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise FlagError(f"cannot read {file}: {reason}") from error


def keys_of_file(file: Path) -> tuple[str, ...]:
    keys = tuple(line for line in read_text(file).splitlines() if line and not line.startswith("#"))
    if not keys:
        raise FlagError(f"the API key file {file} holds no key")
    return keys
