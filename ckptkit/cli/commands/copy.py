"""Implements ``ckptkit copy``: copies a run, or one checkpoint, to another root, and compares what exists there.

The JSON is ``{"source": str, "target": str, ...}`` with the fields of `ckptkit.tools.copy.inventory.Copied`. A bar, or
without a terminal a line for each checkpoint, goes to stderr. If the command is interrupted at any moment, by Ctrl-C
or otherwise, the same command copies the rest.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable
from datetime import datetime, timezone

from rich.console import Console
from rich.filesize import decimal

from ckptkit.cli.byte_bar import CheckpointBar
from ckptkit.cli.errors import WrongUsageError, complain
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import print_json, print_line
from ckptkit.errors import CkptKitError, StorageError
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.copy.inventory import Copied, CopyOutcome

_RESUME = "Nothing that was copied is lost: the same command copies the rest."

_ENDS = {
    "copied": "copied",
    "present": "was already there, identical:",
    "pruned": "skipped, since the source removed it meanwhile:",
    "corrupt": "skipped, since it is corrupt:",
}


def run_copy(
    source: str,
    target: str,
    *,
    checkpoint: str | None,
    source_options: Iterable[str],
    target_options: Iterable[str],
    as_json: bool,
) -> int:
    """Copy and print the outcome; returns the exit code.

    Raises:
        WrongUsageError: If an option is invalid, or both roots are the same.
        CkptKitError: As in `copy_run`.
    """
    request = CopyRequest(checkpoint, lambda: datetime.now(timezone.utc), lambda: secrets.token_hex(16))
    there = open_root(source, source_options, flag="--source-option")
    here = open_root(target, target_options, flag="--target-option", writes=True)
    try:
        with CopyBar(Console(stderr=True)) as bar:
            copied = copy_run(there, here, request, bar)
    except StorageError as error:
        raise StorageError(f"{error} {_RESUME}") from error
    except CkptKitError:
        raise
    except ValueError as error:
        raise WrongUsageError(str(error)) from error
    except KeyboardInterrupt:
        complain(f"interrupted before the copy had ended. {_RESUME}")
        raise
    if as_json:
        urls = {"source": there.url, "target": here.url}
        print_json({**urls, **dataclasses.asdict(copied)})
    else:
        _print_summary(here.url, copied)
    for name, why in copied.corrupt.items():
        complain(f"not copied: {name}: {why}")
    return 1 if copied.corrupt else 0


class CopyBar(CheckpointBar):
    """Shows the progress of a copy; a `ckptkit.tools.copy.inventory.CopyWatch`.

    Args:
        console: Where to draw the bar; without a terminal, prints a line for each checkpoint instead.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, "comparing")

    def end(self, name: str, outcome: CopyOutcome) -> None:
        """Show the outcome for one checkpoint; see `ckptkit.tools.copy.inventory.CopyWatch`."""
        self._ended += outcome in ("copied", "present")
        self._bar.update(self._task, description=self._describe())
        if not self._console.is_terminal:
            at = f" ({self._describe()})" if outcome in ("copied", "present") else ""
            print_line(self._console, f"{_ENDS[outcome]} {name}{at}")


def _print_summary(url: str, copied: Copied) -> None:
    console = Console()
    total = len(copied.copied) + len(copied.present) + len(copied.kept)
    print_line(
        console,
        f"{url}: {total} checkpoints, {len(copied.copied)} of them copied now "
        f"({decimal(copied.copied_bytes)}; {decimal(copied.found_bytes)} were there and compared)",
    )
    if copied.checkpoint is not None:
        print_line(console, f"a new run that continues from {copied.checkpoint}")
    for name in copied.kept:
        print_line(console, f"kept, although the source no longer has it: {name}")
    for name in copied.pruned:
        print_line(console, f"{_ENDS['pruned']} {name}")
