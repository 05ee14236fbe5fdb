"""Implements ``ckptkit copy``: copies a run, or one checkpoint, to another root, and compares what exists there.

The JSON is ``{"source": str, "target": str, ...}`` with the fields of `ckptkit.tools.copy.inventory.Copied`. If the
command is interrupted at any moment, by Ctrl-C or otherwise, the same command copies the rest.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from ckptkit.cli.errors import FINE, PROBLEM, complain, resumable, wrong_values
from ckptkit.cli.output import plain, print_result, size
from ckptkit.cli.progress import CheckpointBar
from ckptkit.cli.run_root import open_root
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.copy.inventory import Copied

_RESUME = "Nothing that was copied is lost: the same command copies the rest."

ENDS = {
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
    """Copy and print the outcome; returns the exit code."""
    request = CopyRequest(checkpoint, lambda: datetime.now(timezone.utc), lambda: secrets.token_hex(16))
    there = open_root(source, source_options, flag="--source-option")
    here = open_root(target, target_options, flag="--target-option", writes=True)
    with wrong_values(), resumable("the copy had ended", _RESUME), CheckpointBar("comparing", ENDS) as bar:
        copied = copy_run(there, here, request, bar)
    print_result({"source": there.url, "target": here.url, **plain(copied)}, _lines(here.url, copied), as_json=as_json)
    for name, why in copied.corrupt.items():
        complain(f"not copied: {name}: {why}")
    return PROBLEM if copied.corrupt else FINE


def _lines(url: str, copied: Copied) -> Iterator[str]:
    total = len(copied.copied) + len(copied.present) + len(copied.kept)
    yield (
        f"{url}: {total} checkpoints, {len(copied.copied)} of them copied now "
        f"({size(copied.copied_bytes)}; {size(copied.found_bytes)} were there and compared)"
    )
    if copied.checkpoint is not None:
        yield f"a new run that continues from {copied.checkpoint}"
    for name in copied.kept:
        yield f"kept, although the source no longer has it: {name}"
    for name in copied.pruned:
        yield f"{ENDS['pruned']} {name}"
