"""``ckptkit ls``: the newest checkpoints of a run as a table, or as JSON.

The JSON is ``{"root": str, "latest": str or null, "checkpoints": [...], "left_out": int}``: oldest first, each
checkpoint with the fields of `ckptkit.run.catalogue.CheckpointInfo`, of which ``progress`` is null where the checkpoint
is corrupt; ``left_out`` counts older ones that are not among them, 0 with ``--all``. What keeps a start from using any
of them goes to stderr. A row costs one read, that of its manifest: COMMIT's own digest, the insides of the rank files
and the shards are for ``ckptkit verify``. Reads, never writes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from ckptkit.cli.errors import complain
from ckptkit.cli.storage_option import open_root
from ckptkit.run.catalogue import CheckpointInfo, Rows, list_rows

NEWEST = 50


def run_ls(root: str, options: Iterable[str] = (), *, as_json: bool, show_all: bool = False) -> int:
    """Print the list; returns the exit code.

    Raises:
        WrongUsageError: If an option cannot be meant.
        StorageError: If the storage failed.
    """
    storage = open_root(root, options)
    rows = list_rows(storage, None if show_all else NEWEST)
    if rows.problem is not None:
        complain(str(rows.problem))
    if as_json:
        _print_json(storage.url, rows)
    else:
        _print_table(storage.url, rows)
    return 1 if rows.problem is not None or any(info.problem for info in rows.shown) else 0


def _print_json(url: str, rows: Rows) -> None:
    checkpoints = [_as_json(info) for info in rows.shown]
    document = {"root": url, "latest": rows.latest, "checkpoints": checkpoints, "left_out": rows.left_out}
    print(json.dumps(document))


def _as_json(info: CheckpointInfo) -> dict[str, object]:
    fields = dataclasses.asdict(info)
    fields["progress"] = info.progress.model_dump() if info.progress else None
    return fields


def _print_table(url: str, rows: Rows) -> None:
    console = Console()
    if not rows.shown and not rows.left_out:
        console.print(f"no committed checkpoint at {url}", markup=False, highlight=False, soft_wrap=True)
        return
    table = Table(title=Text(url), title_justify="left", caption="* latest", caption_justify="left")
    for column in ("checkpoint", "epoch", "batch", "updates", "micro-step", "size", "saved at"):
        left = column in ("checkpoint", "saved at")
        table.add_column(column, justify="left" if left else "right", no_wrap=column == "checkpoint")
    for info in rows.shown:
        name = f"{info.name} *" if info.name == rows.latest else info.name
        if info.progress is None:
            table.add_row(name, *["-"] * 5, Text(info.problem or "", style="red"))
            continue
        at = info.progress
        micro_step = f"{at.micro_step}/{at.accumulation_steps}"
        numbers = (str(at.epoch), str(at.batch), str(at.updates), micro_step)
        table.add_row(name, *numbers, decimal(info.size_bytes), info.created_at[:19])
    console.print(table)
    if rows.left_out:
        many = "checkpoint is" if rows.left_out == 1 else "checkpoints are"
        console.print(f"{rows.left_out} older {many} not shown; --all shows every one", highlight=False, soft_wrap=True)
