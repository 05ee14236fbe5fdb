"""Implements ``ckptkit ls``; ``docs/cli.md`` describes the JSON.

A problem that keeps a start from using any checkpoint goes to stderr. A row costs one read, that of its manifest. Does
not check COMMIT's own digest, the contents of the rank files or the shards; ``ckptkit verify`` does. Never writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.table import Column

from ckptkit.cli.errors import FINE, PROBLEM, complain
from ckptkit.cli.options import AsJson, Options, Root, open_root
from ckptkit.cli.output import Part, ago, plain, print_result, right, table_of, wide_console
from ckptkit.core.text import size
from ckptkit.run.catalog import CheckpointInfo, Rows, list_rows
from ckptkit.run.fence import refuse_no_run

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
    root: Root,
    *,
    show_all: Annotated[bool, typer.Option("--all", help="List every one, not only the newest 50.")] = False,
    options: Options = None,
    as_json: AsJson = False,
    now: datetime | None = None,
) -> int:
    """List the newest committed checkpoints of a run, oldest first.

    Exits with 1 if one of them is seen to be corrupt; it looks at their manifests only.

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
    checkpoints = [_document(info, rows) for info in rows.shown]
    document = {"root": storage.url, "latest": rows.latest, "checkpoints": checkpoints, "left_out": rows.left_out}
    parts = _parts(storage.url, checkpoints, rows, now or datetime.now(timezone.utc))
    print_result(document, parts, as_json=as_json)
    return PROBLEM if rows.problem is not None or any(info.problem for info in rows.shown) else FINE


def _document(info: CheckpointInfo, rows: Rows) -> dict[str, Any]:
    kept = rows.kept.get(info.name)
    return {
        **plain(info),
        "new_bytes": rows.new_bytes[info.name],
        "kept": kept.reason if kept else None,
        "parent_of": kept.parent_of if kept else None,
        "certified_from": list(rows.certified.get(info.name, ())),
    }


def _parts(url: str, checkpoints: list[dict[str, Any]], rows: Rows, now: datetime) -> Iterator[Part]:
    if not rows.shown and not rows.left_out:
        yield f"no committed checkpoint at {url}"
        return
    is_wide = wide_console().width >= _WIDE
    names = [name for name in _COLUMNS if is_wide or name not in _LEFT_OUT]
    hint = "" if is_wide else f"; {' and '.join(_LEFT_OUT)}: in a terminal of {_WIDE} columns, or with --json"
    columns = [
        Column("checkpoint", no_wrap=True),
        *right(*(name if is_wide else name.replace("-", "- ").replace("/", "/ ") for name in names)),
        "kept why" if is_wide else "kept",
    ]
    lines = []
    for info, checkpoint in zip(rows.shown, checkpoints, strict=True):
        cells = _cells(info, checkpoint, now)
        name = f"{info.name} *" if info.name == rows.latest else info.name
        lines.append([name, *(cells[column] for column in names), _last(checkpoint, is_wide)])
    styles = ["red" if info.problem else "" for info in rows.shown]
    yield table_of(columns, lines, title=url, caption=f"* latest{hint}", styles=styles)
    if rows.left_out:
        older = "older checkpoint is" if rows.left_out == 1 else "older checkpoints are"
        yield f"{rows.left_out} {older} not shown; --all shows every one"


def _cells(info: CheckpointInfo, checkpoint: dict[str, Any], now: datetime) -> dict[str, str]:
    cells = dict.fromkeys(_COLUMNS, "-")
    cells["new bytes"], cells["attempt"] = size(checkpoint["new_bytes"]), str(info.attempt)
    at = info.progress
    if at is not None:
        cells["epoch/batch"] = f"{at.epoch}/{at.batch}"
        cells["updates"] = f"{at.updates} batches" if at.counts_batches else str(at.updates)
        cells["micro-step"] = "-" if at.counts_batches else f"{at.micro_step}/{at.accumulation_steps}"
        cells["age"] = ago(info.created_at, now)
        cells["size"] = size(info.size_bytes)
    return cells


def _last(checkpoint: dict[str, Any], is_wide: bool) -> str:
    certified = ", certified" if checkpoint["certified_from"] else ""
    if checkpoint["problem"] is not None or checkpoint["kept"] is None:
        return f"{checkpoint['problem'] or '-'}{certified}"
    long, short = _WHY[checkpoint["kept"]]
    parent = "" if checkpoint["parent_of"] is None else f", parent of attempt {checkpoint['parent_of']}"
    return f"{f'{long}{parent}' if is_wide else short}{certified}"
