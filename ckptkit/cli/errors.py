"""Turns an error into one red message on stderr and an exit code, with a traceback only on request.

Every command goes through `CommandGroup.invoke`, so a command catches only errors that it can handle. An exception that
is neither ckptkit's nor an OSError is a bug in ckptkit and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from ckptkit.errors import CkptKitError, StorageError
from ckptkit.scrubber import scrub, scrub_error

FINE = 0
PROBLEM = 1
WRONG_USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130  # the code that a shell reports after Ctrl-C
BROKEN_PIPE = 141  # and for SIGPIPE

_DEBUG = "--debug"


_OPTIONS = re.compile(r'(?:CheckpointCallback\("([^"]*)", )?storage_options=\{(.*?)\}(?(1)\))')
_ITEM = re.compile(r'"(\w+)": "?([^",]+)')


def in_options(message: str, flag: str = "--option") -> str:
    """Return a message for scripts as one for the command line, whose ``flag`` takes an option of the storage."""

    def typed(match: re.Match[str]) -> str:
        return " ".join(
            [*filter(None, [match[1]]), *("{} {}={}".format(flag, *item) for item in _ITEM.findall(match[2]))]
        )

    message = _OPTIONS.sub(typed, message).replace("storage_options", flag).replace("overwrite=True", "--force")
    return message.replace(", or give credentials= a function", "")


class WrongUsageError(Exception):
    """Reports a wrong command line; the message says how to correct it."""


class CommandGroup(TyperGroup):
    """Groups commands that return their exit code; accepts ``--debug`` before or after any command."""

    def main(self, *args: Any, **options: Any) -> Any:
        # What the terminal's or the pipe's encoding lacks is escaped, in every line.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ours = [argument for argument in args[:end] if argument != _DEBUG]
        asked = [_DEBUG] if len(ours) < end else []
        return super().parse_args(ctx, [*asked, *ours, *args[end:]])

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                code = super().invoke(ctx)
            finally:
                if sys.stdout is not None:  # None if the shell has closed it
                    sys.stdout.flush()  # flush here, where a closed pipe is handled
            raise typer.Exit(code or FINE)
        except (KeyboardInterrupt, typer.Abort) as error:  # typer.Abort comes from a question
            raise typer.Exit(INTERRUPTED) from error
        except BrokenPipeError as error:
            # To the null device, so that the interpreter's last flush succeeds.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
            raise typer.Exit(BROKEN_PIPE) from error
        except SystemExit as error:
            if isinstance(error.__context__, BrokenPipeError):  # rich exits so on a broken pipe
                raise typer.Exit(BROKEN_PIPE) from error
            raise
        except (CkptKitError, WrongUsageError, OSError) as error:
            if ctx.params.get("debug"):
                traceback.print_exception(scrub_error(error))
            copies = ctx.invoked_subcommand == "copy"
            complain(in_options(str(error), "--source-option or --target-option" if copies else "--option"))
            if isinstance(error, WrongUsageError):
                raise typer.Exit(WRONG_USAGE) from error
            # A plain OSError is about a file that the command reads or writes.
            is_problem = isinstance(error, CkptKitError) and not isinstance(error, StorageError)
            raise typer.Exit(PROBLEM if is_problem else UNREACHABLE) from error


@contextlib.contextmanager
def wrong_values() -> Iterator[None]:
    """Report a ValueError as a wrong command line."""
    try:
        yield
    except CkptKitError:
        raise
    except ValueError as error:
        raise WrongUsageError(str(error)) from error


@contextlib.contextmanager
def resumable(end: str, advice: str) -> Iterator[None]:
    """Add ``advice`` to the error of a storage, and to the message about Ctrl-C before ``end``."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error} {advice}") from error
    except KeyboardInterrupt:
        complain(f"Ctrl-C came before {end}. {advice}")
        raise


def complain(message: str) -> None:
    """Print ``message`` to stderr, in red if that is a terminal."""
    from rich.console import Console

    from ckptkit.cli.output import print_line

    print_line(scrub(message), style="red", console=Console(stderr=True))
