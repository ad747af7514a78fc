"""What every command does alike: help and version, one-line errors, exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlxcel import __version__
from mlxcel.cli.flag import Flag, FlagError
from mlxcel.cli.parser import Arguments, parse
from mlxcel.cli.usage import usage
from mlxcel.models.errors import ModelError
from mlxcel.telemetry.logs import LogFileError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot do its work. The message is one clear line."""


@dataclass(frozen=True, slots=True)
class Command:
    """One executable or subcommand."""

    program: str
    """What the user typed, such as `mlxcel run`."""
    operands: str
    """Names of its plain words, for the synopsis."""
    summary: str
    flags: Sequence[Flag]
    work: Callable[[Arguments], int]
    """Raises FlagError, ModelError, LogFileError, CommandError or OSError."""
    most_operands: int = 0
    note: str = ""

    def main(self, argv: Sequence[str]) -> int:
        """Run with the words after the program's name and return the exit code."""
        try:
            if "--help" in argv or "-h" in argv:
                synopsis = " ".join(filter(None, (self.program, self.operands, "[flags]")))
                print(usage(synopsis, self.summary, self.flags, note=self.note), end="", flush=True)
                return 0
            if "--version" in argv:
                print(f"mlxcel {__version__}", flush=True)
                return 0
            code = self.work(parse(argv, self.flags, os.environ, operands=self.most_operands))
            sys.stdout.flush()
            return code
        except FlagError as error:
            return fail(self.program, str(error), EXIT_USAGE)
        except (ModelError, LogFileError, CommandError) as error:
            return fail(self.program, str(error))
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            # Whoever read the output has gone; without this the interpreter complains at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAILURE
        except OSError as error:
            return fail(self.program, str(error))


def fail(program: str, message: str, code: int = EXIT_FAILURE) -> int:
    """Print one error line and return the exit code."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    return code
