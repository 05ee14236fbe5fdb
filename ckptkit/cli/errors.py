"""From an error to what the person sees: one red message on stderr and an exit code, a traceback only when asked for.

Guarantees: every command goes through `CommandGroup.invoke`, so none has to catch what it cannot mend itself. An
exception that is none of ckptkit's and no OSError is a mistake in ckptkit: it keeps its traceback. Main thread only.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from ckptkit.errors import CkptKitError, StorageError
from ckptkit.scrubber import scrub, scrub_error

FINE = 0
PROBLEM = 1
WRONG_USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130  # as a shell reports SIGINT
BROKEN_PIPE = 141  # and SIGPIPE

_DEBUG = "--debug"


class WrongUsageError(Exception):
    """What was typed cannot be meant; the message says what can."""


class CommandGroup(TyperGroup):
    """The commands of ckptkit; ``--debug`` may stand before or behind any of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer's, with ``--debug`` moved to the front from wherever it stands before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        ours = [one for one in args[:end] if one != _DEBUG]
        asked = [_DEBUG] if len(ours) < end else []
        return super().parse_args(ctx, [*asked, *ours, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: With the exit code, whatever of the above the command raised.
        """
        try:
            try:
                return super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # as where the shell has closed it
                    sys.stdout.flush()  # here, where a reader that is gone is no surprise yet
        except (KeyboardInterrupt, typer.Abort) as error:  # the latter where it asked something
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            _forget_stdout()
            raise typer.Exit(BROKEN_PIPE) from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # how rich puts it
                raise typer.Exit(BROKEN_PIPE) from error
            raise
        except (CkptKitError, WrongUsageError, OSError) as error:
            if ctx.params.get("debug"):
                traceback.print_exception(scrub_error(error))
            complain(str(error))
            raise typer.Exit(exit_code_of(error)) from error


def exit_code_of(error: Exception) -> int:
    """What a command ends with that failed for ``error``."""
    if isinstance(error, WrongUsageError):
        return WRONG_USAGE
    if isinstance(error, CkptKitError) and not isinstance(error, StorageError):
        return PROBLEM
    return UNREACHABLE  # a plain OSError is of a file that the command was to read or write


def complain(message: str) -> None:
    """Print ``message`` to stderr, in red where that is a terminal."""
    from rich.console import Console

    from ckptkit.cli.text import visible

    Console(stderr=True).print(visible(scrub(message)), style="red", markup=False, highlight=False, soft_wrap=True)


def _forget_stdout() -> None:
    """Point it at nothing, so that the interpreter's last flush has somewhere to go."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
