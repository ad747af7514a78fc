"""Writes the page `docs/flags.md` from the flag table: `python -m mlxcel.cli.docs [FILE]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from mlxcel.cli.flag import Flag
from mlxcel.cli.flags import SERVED_FLAGS
from mlxcel.cli.flags_unserved import UNSERVED_FLAGS
from mlxcel.cli.usage import spelling

PAGE = Path("docs/flags.md")

_INTRODUCTION = """\
# Flags of the server

`mlxcel-server` and `mlxcel serve` take these flags, written `--flag value` or `--flag=value`. This page is
generated from the flag table (`python -m mlxcel.cli.docs`).

A flag on the command line beats its variables, the first variable that is set beats the ones after it, and those
beat the model's own settings and the built-in default. Variables that are set to nothing count as absent. A switch
takes `on`, `enabled`, `true`, `1`, `off`, `disabled`, `false` or `0` from a variable, and for a switch with a `--no-`
form `LLAMA_ARG_NO_...` means off. Sampling defaults that are not given come from the model's
`generation_config.json`, then from the table.
"""

_VARIABLES = """\

## Further variables

| Variable | Effect |
|---|---|
| `MLXCEL_CACHE_DIR` | Models are kept in `models` below it; default `~/.cache/mlxcel` |
| `MLXCEL_DEFAULT_ORG` | Owner of a bare model name on the hub; default `mlx-community` |
| `HF_HUB_CACHE`, `HF_HOME` | Where models of the Hugging Face cache are found; nothing is written there |
| `HF_ENDPOINT` | Address of the model hub |
| `MLXCEL_ALLOW_INSECURE_ENDPOINT` | Set: the hub token may go to an address that is not encrypted |
| `MLXCEL_LOOP_DETECTION` | Repetition ends a text: `off`, `on` (`1,20,4`), `MIN,MAX,COUNT`; default `on` for Gemma 4 |
| `MLXCEL_APC_TRACE` | `1`: a log line for each state that the prompt cache keeps, takes over or refuses |
| `MLXCEL_DISABLE_BOUNDARY_SNAPSHOT` | `1`: no states are kept where the history of a chat ends ([cache.md](cache.md)) |
| `MLXCEL_DISABLE_CACHE_WARMUP` | `1`: nothing is read ahead while the server is idle ([cache.md](cache.md)) |
| `MLXCEL_REASONING_ECHO_MAX_BYTES` | Reasoning kept for later turns ([cache.md](cache.md)); default `16M` |
| `MLXCEL_NO_PROGRESS`, `CI` | Set: no download progress |
| `NO_COLOR` | Set: no colors |
"""

_UNSERVED = """\

## Known, but not served

These flags are accepted at the values shown, where they change nothing. Any other value stops the start with a
message that says what to do instead.

| Flag | Accepted | Variable |
|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    for section, rows in groupby(SERVED_FLAGS, key=lambda flag: flag.section):
        parts.append(f"\n## {section}\n\n| Flag | Default | Variable | Meaning |\n|---|---|---|---|\n")
        parts += [
            f"| {_code(spelling(flag))} | {_escape(flag.default)} | {_variables(flag)} | {_escape(flag.help)} |\n"
            for flag in rows
        ]
    parts += [_VARIABLES, _UNSERVED]
    parts += [_unserved_row(flag) for flag in UNSERVED_FLAGS]
    return "".join(parts)


def _unserved_row(flag: Flag) -> str:
    accepted = flag.unserved.inert if flag.unserved else ""
    return f"| {_code(spelling(flag))} | {accepted} | {_variables(flag)} |\n"


def _variables(flag: Flag) -> str:
    return _join(flag.env)


def _join(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _code(text: str) -> str:
    return f"`{_escape(text)}`"


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page to the file named, else to `docs/flags.md` below the current directory."""
    arguments = sys.argv[1:] if argv is None else argv
    target = Path(arguments[0]) if arguments else PAGE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
