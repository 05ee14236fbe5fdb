"""``ckptkit ls``: the checkpoints of a run as a table, or as JSON.

The JSON is ``{"root": str, "latest": str or null, "checkpoints": [...]}``, each checkpoint with the fields of
`ckptkit.run.catalogue.CheckpointInfo`; ``progress`` is null where the checkpoint is corrupt. What keeps a start
from using any of them goes to stderr. Reads, never writes.
"""

from __future__ import annotations

import dataclasses
import json

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ckptkit.errors import CkptKitError, StorageError
from ckptkit.run.catalogue import CheckpointInfo, latest_checkpoint, list_checkpoints
from ckptkit.storage import open_storage


def run_ls(root: str, *, as_json: bool) -> int:
    """Print the list; returns the exit code."""
    try:
        storage = open_storage(root)
        found = list_checkpoints(storage)
    except StorageError as error:
        _complain(error)
        return 3
    latest, usable = None, True
    try:
        latest = latest_checkpoint(storage)
    except CkptKitError as error:
        _complain(error)
        usable = False
    if as_json:
        rows = [_as_json(info) for info in found]
        print(json.dumps({"root": storage.url, "latest": latest.name if latest else None, "checkpoints": rows}))
    else:
        _print_table(storage.url, found, latest)
    return 1 if not usable or any(info.problem for info in found) else 0


def _complain(error: CkptKitError) -> None:
    Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)


def _as_json(info: CheckpointInfo) -> dict[str, object]:
    fields = dataclasses.asdict(info)
    fields["progress"] = info.progress.model_dump() if info.progress else None
    return fields


def _print_table(url: str, found: list[CheckpointInfo], latest: CheckpointInfo | None) -> None:
    console = Console()
    if not found:
        console.print(f"no committed checkpoint at {url}", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(title=Text(url), title_justify="left", caption="* latest", caption_justify="left")
    for column in ("checkpoint", "epoch", "batch", "updates", "micro-step", "size", "saved at"):
        left = column in ("checkpoint", "saved at")
        table.add_column(column, justify="left" if left else "right", no_wrap=column == "checkpoint")
    for info in found:
        name = f"{info.name} *" if latest and info.name == latest.name else info.name
        if info.progress is None:
            table.add_row(name, *["-"] * 5, Text(info.problem or "", style="red"))
            continue
        at = info.progress
        micro_step = f"{at.micro_step}/{at.accumulation_steps}"
        numbers = (str(at.epoch), str(at.batch), str(at.updates), micro_step)
        table.add_row(name, *numbers, decimal(info.size_bytes), info.created_at[:19])
    console.print(table)
