"""Implements ``ckptkit copy``; ``docs/cli.md`` describes the JSON. If it is interrupted, the same command goes on."""

from __future__ import annotations

import secrets
from datetime import datetime, timezone
from typing import Annotated

import typer

from ckptkit.cli.errors import FINE, PROBLEM, complain, resumable, wrong_values
from ckptkit.cli.options import AsJson, complete_checkpoint, open_root, storage_option
from ckptkit.cli.output import CheckpointBar, plain, print_result
from ckptkit.core.text import size
from ckptkit.tools.copy.copy import CopyRequest, copy_run

_RESUME = "Nothing that was copied is lost: the same command copies the rest."

ENDS = {
    "copied": "copied",
    "present": "was already there, identical:",
    "pruned": "skipped, since the source removed it meanwhile:",
    "corrupt": "skipped, since it is corrupt:",
}


def run_copy(
    source: Annotated[str, typer.Argument(help="The run root to copy: a path or a URL.")],
    target: Annotated[str, typer.Argument(help="Where to: a new root, or one that this command has begun to fill.")],
    *,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="Copy this one alone, as a new run that continues from it.",
            autocompletion=complete_checkpoint,
        ),
    ] = None,
    source_option: Annotated[
        list[str] | None, storage_option("--source-option", "Option of the source's storage")
    ] = None,
    target_option: Annotated[
        list[str] | None, storage_option("--target-option", "Option of the target's storage")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Copy a run from one root to another, every byte verified; run it again to resume or to bring the copy up to date.

    Exits with 1 if a checkpoint is corrupt, or something else lies at the target, which then stays as it is.

    Examples:
        ckptkit copy runs/vit-17 /backup/vit-17
        ckptkit copy runs/vit-17 s3://bucket/vit-17 --target-option endpoint_url=https://s3.example
    """
    request = CopyRequest(checkpoint, lambda: datetime.now(timezone.utc), lambda: secrets.token_hex(16))
    there = open_root(source, source_option, flag="--source-option")
    here = open_root(target, target_option, flag="--target-option", writes=True)
    with wrong_values(), resumable("the copy had ended", _RESUME), CheckpointBar("comparing", ENDS) as bar:
        copied = copy_run(there, here, request, bar)
    total = len(copied.copied) + len(copied.present) + len(copied.kept)
    lines = [
        f"{here.url}: {total} checkpoints, {len(copied.copied)} of them copied now "
        f"({size(copied.copied_bytes)}; {size(copied.found_bytes)} were there and compared)"
    ]
    if copied.checkpoint is not None:
        lines.append(f"a new run that continues from {copied.checkpoint}")
    lines += [f"kept, although the source no longer has it: {name}" for name in copied.kept]
    lines += [f"{ENDS['pruned']} {name}" for name in copied.pruned]
    print_result({"source": there.url, "target": here.url, **plain(copied)}, lines, as_json=as_json)
    for name, why in copied.corrupt.items():
        complain(f"not copied: {name}: {why}")
    return PROBLEM if copied.corrupt else FINE
