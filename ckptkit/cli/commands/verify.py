"""Implements ``ckptkit verify``: checks every byte of a run, or of one checkpoint, against its digests.

The JSON is ``{"root": str, "checkpoints": [...], "problems": [...], "uncommitted": [str], "void": [str], "start": {...}
or null, "files": int, "read_bytes": int}``. Each checkpoint has ``name``, ``outcome`` (``whole``, ``corrupt``, or
``removed`` by the job meanwhile), ``size_bytes`` and ``problems``. Each problem has ``file``, ``message``, ``tensors``
(those that may be damaged), ``expected`` and ``found`` (digests, or null). ``start`` has the fields of
`ckptkit.tools.verify.run.Start`, and is null if one checkpoint was asked for. A bar, or without a terminal a line for
each checkpoint, goes to stderr. Reads and never writes.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable

from rich.console import Console

from ckptkit.cli.byte_bar import CheckpointBar
from ckptkit.cli.errors import FINE, PROBLEM, WrongUsageError
from ckptkit.cli.no_run import refuse_no_run
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import print_json, print_line, size
from ckptkit.tools.verify.checkpoint import Proof, ProofOutcome
from ckptkit.tools.verify.run import Audit, Start, audit

_ENDS = {
    "whole": "whole",
    "corrupt": "CORRUPT:",
    "removed": "skipped, since it was removed meanwhile:",
}


def run_verify(
    root: str,
    checkpoint: str | None,
    options: Iterable[str] = (),
    *,
    everything: bool = False,
    as_json: bool,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Verify the run and print the result; returns the exit code.

    Raises:
        WrongUsageError: If an option is invalid, or both one checkpoint and all of them are asked for.
        CheckpointNotFoundError: If ``root`` cannot be a run: the folder does not exist, or holds something else.
        CkptKitError: As in `ckptkit.tools.verify.run.audit`.
    """
    if everything and checkpoint is not None:
        raise WrongUsageError(f"--all verifies every checkpoint; leave it out to verify {checkpoint} alone")
    storage = open_root(root, options)
    begun = clock()
    with VerifyBar(Console(stderr=True)) as bar:
        found = audit(storage, bar, checkpoint)
    if not found.checkpoints:
        refuse_no_run(storage)
    url = storage.url
    if as_json:
        print_json({"root": url, **dataclasses.asdict(found), "read_bytes": bar.read_bytes})
    else:
        _print_audit(url, found, bar.read_bytes, clock() - begun)
    return FINE if found.is_fine else PROBLEM


class VerifyBar(CheckpointBar):
    """Shows the progress of an audit; a `ckptkit.tools.verify.run.AuditWatch`.

    Args:
        console: Where to draw the bar; without a terminal, prints a line for each checkpoint instead.

    Attributes:
        read_bytes: Number of bytes read so far.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console, "listing")
        self._lock = threading.Lock()
        self._corrupt = 0
        self.read_bytes = 0

    def advance(self, size_bytes: int) -> None:
        """Add ``size_bytes`` to the bytes read; see `ckptkit.tools.verify.run.AuditWatch`."""
        with self._lock:
            self.read_bytes += size_bytes
        super().advance(size_bytes)

    def end(self, name: str, outcome: ProofOutcome) -> None:
        """Show the outcome for one checkpoint; see `ckptkit.tools.verify.run.AuditWatch`."""
        with self._lock:
            self._ended += 1
            self._corrupt += outcome == "corrupt"
            described = self._describe()
            self._bar.update(self._task, description=described)
            if not self._console.is_terminal:
                print_line(self._console, f"{_ENDS[outcome]} {name} ({described})")

    def _describe(self) -> str:
        corrupt = f", {self._corrupt} corrupt" if self._corrupt else ""
        return f"{super()._describe()}{corrupt}"


def _print_audit(url: str, found: Audit, read_bytes: int, seconds: float) -> None:
    console = Console()
    speed = f", {size(int(read_bytes / seconds))}/s" if seconds > 0 else ""
    counted = _counted(found.checkpoints)
    print_line(console, f"{url}: {counted}; {found.files} files, {size(read_bytes)} read{speed}")
    told: set[str] = set()
    for problem in found.problems:
        print_line(console, problem.message, style="red")
        told.add(problem.message)
    for proof in found.checkpoints:
        if proof.outcome == "corrupt":
            print_line(console, f"{proof.name} is corrupt:", style="bold red")
            for problem in proof.problems:
                again = " (see above)" if problem.message in told else ""
                print_line(console, f"  {problem.file if again else problem.message}{again}", style="red")
                told.add(problem.message)
        elif proof.outcome == "removed":
            print_line(console, f"{proof.name} was removed during verification, which is not a problem")
    if found.uncommitted:
        print_line(console, f"without a COMMIT, so not a checkpoint: {', '.join(found.uncommitted)}")
        print_line(
            console, "  a save that is under way, or one that ended early; the next start removes what is left of it"
        )
    if found.void:
        print_line(console, f"void, so never a checkpoint: {', '.join(found.void)}")
    if found.start is not None:
        _print_start(console, found.start, any(one.outcome == "whole" for one in found.checkpoints))


def _counted(proofs: Iterable[Proof]) -> str:
    outcomes = [proof.outcome for proof in proofs]
    if not outcomes:
        return "no committed checkpoint"
    parts = [f"{outcomes.count(one)} {one}" for one in ("whole", "corrupt", "removed") if one in outcomes]
    return f"{len(outcomes)} checkpoint{'s' if len(outcomes) > 1 else ''}: {', '.join(parts)}"


def _print_start(console: Console, start: Start, is_any_whole: bool) -> None:
    if start.problem is not None:
        print_line(console, f"a start on this run would end with an error: {start.problem}", style="bold red")
        print_line(console, "Bring the files named above back from a copy of the run, then verify again.")
        if is_any_whole:
            print_line(console, "Or name one of the whole checkpoints: resume(checkpoint=NAME).")
        return
    if start.checkpoint is None:
        print_line(console, "a start on this run begins afresh")
        return
    if not start.passed_over:
        print_line(console, f"a start continues from {start.checkpoint}")
        return
    print_line(
        console,
        f"a start passes over {', '.join(start.passed_over)} and continues from {start.checkpoint}; training since "
        "then is repeated",
        style="bold yellow",
    )
    print_line(
        console,
        "To lose nothing, bring the files named above back from a copy of the run before the job is started again. "
        "Otherwise just start it.",
    )
