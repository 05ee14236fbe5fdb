"""Implements ``ckptkit diff``; ``docs/cli.md`` describes the JSON. Reads and never writes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import typer

from ckptkit.cli.errors import FINE, PROBLEM
from ckptkit.cli.options import AsJson, Options, Root, complete_checkpoint, open_root, storage_option
from ckptkit.cli.output import Part, bar_of_bytes, plain, print_result, table_of
from ckptkit.run.resolve import LATEST, open_wanted
from ckptkit.tools.diff import CheckpointDifference, LeafDifference, Side, compare, in_order_of_size

_CHECKPOINT = re.compile(r"latest|best(:.*)?|(step-)?[0-9]+|a0[-0-9cmt]*")  # what is not, is a root
_STATE_SHOWN = 20
_NUMBERS = ("abs", "relative", "ulps", "NaN A/B", "first at")


def run_diff(
    root: Root,
    a: Annotated[
        str,
        typer.Argument(
            help="A checkpoint, as for ckptkit show; without B also another root, to compare the newest of both.",
            autocompletion=complete_checkpoint,
        ),
    ],
    b: Annotated[
        str | None, typer.Argument(help="Like A; default: the newest.", autocompletion=complete_checkpoint)
    ] = None,
    *,
    other_root: Annotated[str | None, typer.Option(metavar="URL", help="The root of B, if it is not ROOT.")] = None,
    top: Annotated[int, typer.Option(min=0, help="How many of the leaves that differ to list.")] = 20,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 also where anything differs.")] = False,
    options: Options = None,
    other_option: Annotated[
        list[str] | None, storage_option("--other-option", "Option of the other root's storage")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show which leaves, counters and parts of the state differ between two checkpoints, and by how much.

    Exits with 1 if updates lie between the two and no weight has changed: one of them is stale. That they differ is no
    problem, but with --exit-code.

    Examples:
        ckptkit diff runs/vit-17 a000001-c0000000100-m0000 latest
        ckptkit diff runs/vit-17 s3://bucket/vit-17 --exit-code
    """
    if b is None and other_root is None and _CHECKPOINT.fullmatch(a) is None:
        a, other_root = LATEST, a
    here = open_root(root, options)
    there = here if other_root is None else open_root(other_root, other_option, flag="--other-option")
    opened = open_wanted(here, a), open_wanted(there, b if b is not None else LATEST)
    with bar_of_bytes() as bar:
        task = bar.add_task("comparing", total=None)
        advance = partial(bar.advance, task)
        sides = Side(here, opened[0], advance), Side(there, opened[1], advance)
        difference = compare(*sides, lambda size_bytes: bar.update(task, total=size_bytes))
        read_bytes = int(bar.tasks[0].completed)
    root_a, root_b = (
        {"root": storage.url, "checkpoint": str(checkpoint.name)}
        for storage, checkpoint in zip((here, there), opened, strict=True)
    )
    document = {"a": root_a, "b": root_b, "equal": difference.is_empty, **plain(difference), "read_bytes": read_bytes}
    heads = (f"{side}: {of['checkpoint']} at {of['root']}" for side, of in (("A", root_a), ("B", root_b)))
    print_result(document, (*heads, *parts_of(difference, top)), as_json=as_json)
    differs = exit_code and not difference.is_empty
    return PROBLEM if difference.suspicion is not None or differs else FINE


def parts_of(difference: CheckpointDifference, top: int) -> Iterator[Part]:
    """Yield what differs, of the leaves the ``top`` that differ most."""
    if difference.is_empty:
        yield "the two are equal, to the bit"
    if difference.progress:
        moved = [f"{name} {a} -> {b} ({b - a:+d})" for name, (a, b) in difference.progress.items()]
        yield f"progress: {', '.join(moved)}"
    before, after = difference.ranks
    if before != after:
        yield f"ranks: {before} -> {after}; what both have of the state is compared"
    roles = ([role, *map(str, dataclasses.astuple(count))] for role, count in difference.roles.items())
    yield "leaves"
    yield from table_of(("role", ">equal", ">differing", ">only in A", ">only in B"), roles)
    if difference.leaves and top:
        yield "what differs, the most first; abs, relative and ulps at most"
        columns = ("leaf", "role", ">elements", *(f">{name}" for name in _NUMBERS))
        leaves = map(_cells, in_order_of_size(difference.leaves)[:top])
        yield from table_of(columns, leaves, spare=("NaN A/B", "first at", "relative"))
        if len(difference.leaves) > top:
            yield f"{len(difference.leaves) - top} more leaves differ; --top shows more, --json all"
    for place in difference.state[:_STATE_SHOWN]:
        rank = f"rank {place.rank}: " if max(difference.ranks) > 1 else ""
        yield f"state: {rank}{place.path}: {place.a} -> {place.b}"
    if len(difference.state) > _STATE_SHOWN:
        yield f"state: {len(difference.state) - _STATE_SHOWN} more places differ; --json shows all"
    if difference.suspicion is not None:
        yield f"SUSPICIOUS: {difference.suspicion}", "bold red"


def _cells(leaf: LeafDifference) -> list[str]:
    name = leaf.name if leaf.rank is None else f"{leaf.name} (rank {leaf.rank})"
    numbers = leaf.divergence
    if numbers is None:
        form = (
            f"A: {leaf.form_a}, B: {leaf.form_b}" if leaf.kind == "form" else f"{leaf.kind[:-1]}{leaf.kind[-1].upper()}"
        )
        return [name, leaf.role, form, *["-"] * len(_NUMBERS)]
    most = (numbers.max_abs, numbers.max_relative, numbers.max_ulps)
    return [
        name,
        leaf.role,
        f"{numbers.differing}/{numbers.elements}",
        *("-" if value is None else f"{value:.2g}" for value in most),
        f"{numbers.nans_a}/{numbers.nans_b}" if numbers.nans_a or numbers.nans_b else "-",
        f"[{','.join(map(str, numbers.first or ()))}]",
    ]
