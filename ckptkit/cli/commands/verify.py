"""Implements ``ckptkit verify``; ``docs/cli.md`` describes the JSON. Reads and never writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer

from ckptkit.cli.errors import FINE, PROBLEM
from ckptkit.cli.options import AsJson, Options, Root, complete_checkpoint, open_root
from ckptkit.cli.output import CheckpointBar, Part, plain, print_result
from ckptkit.core.text import many, size
from ckptkit.run.ownership import refuse_no_run
from ckptkit.tools.verify import Audit, Start, audit

ENDS = {"whole": "whole", "corrupt": "CORRUPT:", "removed": "skipped, since it was removed meanwhile:"}


def run_verify(
    root: Root,
    checkpoint: Annotated[
        str | None, typer.Argument(help="This one alone; as for ckptkit show.", autocompletion=complete_checkpoint)
    ] = None,
    *,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """Prove every byte of a run against its digests, name all that is wrong, and say what a start would do.

    Exits with 1 if something is corrupt. Folders without a COMMIT and void ones are reported and are no problem.

    Examples:
        ckptkit verify runs/vit-17
        ckptkit verify obs://bucket/vit-17 latest --option endpoint_url=https://obs.example
    """
    storage = open_root(root, options)
    begun = time.monotonic()
    with CheckpointBar("listing", ENDS) as bar:
        result = audit(storage, bar, checkpoint)
    if not result.checkpoints:
        refuse_no_run(storage)
    seconds = time.monotonic() - begun
    speed = f", {size(int(bar.read_bytes / seconds))}/s" if seconds > 0 else ""
    read = f"{result.files} files, {size(bar.read_bytes)} read{speed}"
    outcomes = [proof.outcome for proof in result.checkpoints]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in ENDS if outcome in outcomes)
    counted = f"{many(len(outcomes), 'checkpoint')}: {counts}" if outcomes else "no committed checkpoint"
    lines = (f"{storage.url}: {counted}; {read}", *_lines(result))
    print_result({"root": storage.url, **plain(result), "read_bytes": bar.read_bytes}, lines, as_json=as_json)
    return FINE if result.is_fine else PROBLEM


def _lines(result: Audit) -> Iterator[Part]:
    """Yield the lines; a problem that was told is named by its file."""
    shown: set[str] = set()
    for problem in result.problems:
        yield problem.message, "red"
        shown.add(problem.message)
    for proof in result.checkpoints:
        if proof.outcome == "corrupt":
            yield f"{proof.name} is corrupt:", "bold red"
            for problem in proof.problems:
                is_shown = problem.message in shown
                yield f"  {f'{problem.file} (see above)' if is_shown else problem.message}", "red"
                shown.add(problem.message)
        elif proof.outcome == "removed":
            yield f"{proof.name} was removed during verification, which is not a problem"
    if result.uncommitted:
        yield f"without a COMMIT, so not a checkpoint: {', '.join(result.uncommitted)}"
        yield "  a save that is under way, or one that ended early; the next start removes what is left of it"
    if result.void:
        yield f"void, so never a checkpoint: {', '.join(result.void)}"
    if result.start is not None:
        yield from _lines_of_start(result.start, any(proof.outcome == "whole" for proof in result.checkpoints))


def _lines_of_start(start: Start, is_any_whole: bool) -> Iterator[Part]:
    if start.problem is not None:
        yield f"a start on this run would end with an error: {start.problem}", "bold red"
        yield "Bring the files named above back from a copy of the run, then verify again."
        if is_any_whole:
            yield "Or name one of the whole checkpoints: resume(checkpoint=NAME)."
    elif start.checkpoint is None:
        yield "a start on this run begins afresh"
    elif not start.passed_over:
        yield f"a start continues from {start.checkpoint}"
    else:
        yield (
            f"a start passes over {', '.join(start.passed_over)} and continues from {start.checkpoint}; training since "
            "then is repeated",
            "bold yellow",
        )
        yield (
            "To lose nothing, bring the files named above back from a copy of the run before the job is started again. "
            "Otherwise just start it."
        )
