"""Implements ``ckptkit ls``; ``docs/cli.md`` describes the JSON.

A problem that keeps a start from using any checkpoint goes to stderr. A row costs one read, that of its manifest. Of
all other files it sees the size; ``ckptkit verify`` reads them. Never writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Annotated, Any

import typer

from ckptkit.cli.errors import FINE, PROBLEM, complain
from ckptkit.cli.options import AsJson, Options, Root, open_root
from ckptkit.cli.output import Part, ago, plain, print_result, table_of
from ckptkit.core.text import size
from ckptkit.format.layout import CheckpointName
from ckptkit.run.catalog import CheckpointInfo, Rows, list_rows
from ckptkit.run.ownership import refuse_no_run

NEWEST = 50

_WHY = {"newest-two": "newest", "off-lineage": "branch"}
_COLUMNS = (
    ">step",
    "checkpoint",
    ">epoch/\nbatch",
    ">updates",
    ">micro-\nstep",
    ">age",
    ">size",
    ">new\nbytes",
    "kept",
)
_SPARE = ("new\nbytes", "updates", "age", "epoch/\nbatch")


def run_ls(
    root: Root,
    *,
    show_all: Annotated[bool, typer.Option("--all", help="List every one, not only the newest 50.")] = False,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """List the newest committed checkpoints of a run, oldest first.

    Exits with 1 if one of them is seen to be corrupt, by its manifest and the sizes of its files.

    Examples:
        ckptkit ls runs/vit-17
        ckptkit ls s3://bucket/vit-17 --json --all
    """
    storage = open_root(root, options)
    rows = list_rows(storage, None if show_all else NEWEST)
    if rows.problem is not None:
        complain(str(rows.problem))
    elif not rows.shown:
        refuse_no_run(storage)
    checkpoints = []
    for info in rows.shown:
        kept = rows.kept.get(info.name)
        more = {
            "new_bytes": rows.new_bytes[info.name],
            "kept": kept.reason if kept else None,
            "parent_of": kept.parent_of if kept else None,
            "certified_from": list(rows.certified.get(info.name, ())),
        }
        checkpoints.append({**plain(info), **more})
    document = {"root": storage.url, "latest": rows.latest, "checkpoints": checkpoints, "left_out": rows.left_out}
    parts = _parts(storage.url, checkpoints, rows, datetime.now(timezone.utc))
    print_result(document, parts, as_json=as_json)
    return PROBLEM if rows.problem is not None or any(info.problem for info in rows.shown) else FINE


def _parts(url: str, checkpoints: list[dict[str, Any]], rows: Rows, now: datetime) -> Iterator[Part]:
    if not rows.shown and not rows.left_out:
        yield f"no committed checkpoint at {url}"
        return
    yield url
    lines = (_cells(info, checkpoint, now) for info, checkpoint in zip(rows.shown, checkpoints, strict=True))
    styles = ["red" if info.problem else "" for info in rows.shown]
    yield from table_of(_COLUMNS, lines, spare=_SPARE, styles=styles)
    for info in rows.shown:
        if info.problem is not None:
            yield f"{info.name} is corrupt: {info.problem}", "red"
    if rows.left_out:
        older = "older checkpoint is" if rows.left_out == 1 else "older checkpoints are"
        yield f"{rows.left_out} {older} not shown; --all shows every one"


def _cells(info: CheckpointInfo, checkpoint: dict[str, Any], now: datetime) -> list[str]:
    name, at = CheckpointName.parse(info.name), info.progress
    assert name is not None  # noqa: S101 - it was listed
    cells = [str(name.cycles), info.name, *["-"] * 5]
    if at is not None:
        cells[2:4] = f"{at.epoch}/{at.batch}", f"{at.updates} batches" if at.counts_batches else str(at.updates)
        cells[4] = "-" if at.counts_batches else f"{at.micro_step}/{at.accumulation_steps}"
        cells[5:] = ago(info.created_at, now), size(info.size_bytes)
    kept = checkpoint["kept"] or "-"
    why = ["corrupt" if checkpoint["problem"] is not None else _WHY.get(kept, kept)]
    if checkpoint["parent_of"] is not None:
        why.append(f"parent of {checkpoint['parent_of']}")
    if checkpoint["certified_from"]:
        why.append("certified")
    return [*cells, size(checkpoint["new_bytes"]), ", ".join(why)]
