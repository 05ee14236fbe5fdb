"""Implements ``ckptkit ls``: lists the newest checkpoints of a run as a table or as JSON.

``docs/cli.md`` describes the JSON: each checkpoint has the fields of `ckptkit.run.catalog.CheckpointInfo`, of which
``progress`` is null if the checkpoint is corrupt, and those of `ckptkit.run.catalog.Rows` about it. A problem that
keeps a start from using any checkpoint goes to stderr. A row costs one read, that of its manifest. Does not check
COMMIT's own digest, the contents of the rank files or the shards; use ``ckptkit verify``. Reads and never writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import datetime

from rich.console import Console
from rich.text import Text

from ckptkit.cli.errors import complain
from ckptkit.cli.no_run import refuse_no_run
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import ago, console_for_tables, plain_table, print_json, size, visible
from ckptkit.run.catalog import CheckpointInfo, Kept, Rows, list_rows

NEWEST = 50

_WHY = {  # the text for a wide and for a narrow terminal
    "latest": ("latest", "latest"),
    "newest-two": ("one of the two newest", "newest"),
    "policy": ("policy of the run", "policy"),
    "off-lineage": ("off the lineage (prune --branches)", "branch"),
    "unknown": ("not known", "unknown"),
}
_COLUMNS = ("epoch/batch", "updates", "micro-step", "age", "size", "new bytes", "attempt")
_LEFT_OUT = ("new bytes", "attempt")  # in a narrow terminal
_WIDE = 118


def run_ls(
    root: str, options: Iterable[str] = (), *, now: datetime, as_json: bool = False, show_all: bool = False
) -> int:
    """Print the list; returns the exit code.

    Args:
        root: A path or a URL.
        options: Options of its storage.
        now: The time at which ages are computed.
        as_json: Whether to print one JSON document.
        show_all: Whether to list all checkpoints and not only the newest.

    Raises:
        WrongUsageError: If an option is invalid.
        CheckpointNotFoundError: If ``root`` cannot be a run: the folder does not exist, or holds something else.
        StorageError: If the storage failed.
    """
    storage = open_root(root, options)
    rows = list_rows(storage, None if show_all else NEWEST)
    if rows.problem is not None:
        complain(str(rows.problem))
    elif not rows.shown:
        refuse_no_run(storage)
    if as_json:
        _print_json(storage.url, rows)
    else:
        _print_table(storage.url, rows, now)
    return 1 if rows.problem is not None or any(info.problem for info in rows.shown) else 0


def _print_json(url: str, rows: Rows) -> None:
    checkpoints = [_as_json(info, rows) for info in rows.shown]
    document = {"root": url, "latest": rows.latest, "checkpoints": checkpoints, "left_out": rows.left_out}
    print_json(document)


def _as_json(info: CheckpointInfo, rows: Rows) -> dict[str, object]:
    kept = rows.kept.get(info.name)
    return {
        **dataclasses.asdict(info),
        "progress": info.progress.model_dump() if info.progress else None,
        "new_bytes": rows.new_bytes[info.name],
        "kept": kept.reason if kept else None,
        "parent_of": kept.parent_of if kept else None,
        "certified_from": list(rows.certified.get(info.name, ())),
    }


def _print_table(url: str, rows: Rows, now: datetime) -> None:
    if not rows.shown and not rows.left_out:
        Console().print(f"no committed checkpoint at {url}", markup=False, highlight=False, soft_wrap=True)
        return
    console = console_for_tables()
    is_wide = console.width >= _WIDE
    columns = [one for one in _COLUMNS if is_wide or one not in _LEFT_OUT]
    hint = "" if is_wide else f"; {' and '.join(_LEFT_OUT)}: in a terminal of {_WIDE} columns, or with --json"
    table = plain_table(url, f"* latest{hint}")
    table.add_column("checkpoint", no_wrap=True)
    for column in columns:
        table.add_column(column if is_wide else column.replace("-", "- ").replace("/", "/ "), justify="right")
    table.add_column("kept why" if is_wide else "kept")
    for info in rows.shown:
        name = f"{info.name} *" if info.name == rows.latest else info.name
        cells = _cells(info, rows, now)
        last = _last(info, rows.kept.get(info.name), is_wide)
        if rows.certified.get(info.name):
            last.append(", certified")
        table.add_row(name, *(cells[column] for column in columns), last)
    console.print(table)
    if rows.left_out:
        many = "checkpoint is" if rows.left_out == 1 else "checkpoints are"
        console.print(f"{rows.left_out} older {many} not shown; --all shows every one", highlight=False, soft_wrap=True)


def _cells(info: CheckpointInfo, rows: Rows, now: datetime) -> dict[str, str]:
    """Return the cells by column, in the order of `_COLUMNS`."""
    cells = dict.fromkeys(_COLUMNS, "-")
    cells["new bytes"], cells["attempt"] = size(rows.new_bytes[info.name]), str(info.attempt)
    at = info.progress
    if at is not None:
        cells["epoch/batch"] = f"{at.epoch}/{at.batch}"
        cells["updates"] = f"{at.updates} batches" if at.counts_batches else str(at.updates)
        cells["micro-step"] = "-" if at.counts_batches else f"{at.micro_step}/{at.accumulation_steps}"
        cells["age"] = ago(info.created_at, now)
        cells["size"] = size(info.size_bytes)
    return cells


def _last(info: CheckpointInfo, kept: Kept | None, is_wide: bool) -> Text:
    if info.problem is not None:
        return Text(visible(info.problem), style="red")
    if kept is None:
        return Text("-")
    long, short = _WHY[kept.reason]
    parent = "" if kept.parent_of is None else f", parent of attempt {kept.parent_of}"
    return Text(f"{long}{parent}" if is_wide else short)
