"""Implements ``ckptkit diff``: shows what differs between two checkpoints, and by how much.

The JSON is ``{"a": {"root": str, "checkpoint": str}, "b": {...}, "equal": bool, ...}`` with the fields of
`ckptkit.tools.diff.checkpoints.Difference`: ``progress`` (counters that differ: [a, b]), ``ranks`` ([a, b]), ``roles``
(counts of leaves), ``leaves`` (all that differ; ``divergence`` as `ckptkit.tools.diff.statistics.Divergence`, where a
number that is not finite is null), ``state`` and ``suspicion`` (a text, or null); at the end ``read_bytes``. Reads
and never writes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ckptkit.cli.byte_bar import byte_bar
from ckptkit.cli.errors import FINE, PROBLEM
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import console_for_tables, plain_table, print_json, print_line, visible
from ckptkit.format.layout import CheckpointName
from ckptkit.run.resolve import LATEST, open_wanted
from ckptkit.tools.diff.checkpoints import Difference, LeafDifference, compare, in_order_of_size
from ckptkit.tools.diff.leaf import Side

_STATE_SHOWN = 20


def run_diff(
    root: str,
    a: str,
    b: str | None,
    options: Iterable[str] = (),
    *,
    other_root: str | None = None,
    other_options: Iterable[str] = (),
    top: int,
    exit_code: bool = False,
    as_json: bool,
) -> int:
    """Compare ``a`` of ``root`` with ``b`` of the other root, or of the same root; returns the exit code.

    ``b`` defaults to the newest checkpoint. If ``b`` and ``other_root`` are missing and ``a`` is neither ``latest`` nor
    a checkpoint's name, ``a`` is the other root, and the newest checkpoints of both roots are compared.

    Raises:
        WrongUsageError: If an option is invalid.
        CkptKitError: As in `ckptkit.tools.diff.checkpoints.compare`, and if one of the two does not exist.
    """
    if b is None and other_root is None and a != LATEST and CheckpointName.parse(a) is None:
        a, other_root = LATEST, a
    here = open_root(root, options)
    there = here if other_root is None else open_root(other_root, other_options, flag="--other-option")
    one, other = open_wanted(here, a), open_wanted(there, b if b is not None else LATEST)
    read_bytes = 0
    with byte_bar(Console(stderr=True)) as bar:
        task = bar.add_task("comparing", total=None)

        def advance(size_bytes: int) -> None:
            nonlocal read_bytes
            read_bytes += size_bytes
            bar.advance(task, size_bytes)

        sides = Side(here, one, advance), Side(there, other, advance)
        found = compare(*sides, lambda size_bytes: bar.update(task, total=size_bytes))
    names = [{"root": storage.url, "checkpoint": str(opened.name)} for storage, opened in ((here, one), (there, other))]
    if as_json:
        print_json(_as_json(names, found, read_bytes))
    else:
        _print_difference(names, found, top)
    differs = exit_code and not found.is_empty
    return PROBLEM if found.suspicion is not None or differs else FINE


def _as_json(names: list[dict[str, str]], found: Difference, read_bytes: int) -> dict[str, object]:
    document = dataclasses.asdict(found)
    for leaf in document["leaves"]:
        numbers = leaf["divergence"]
        if numbers is not None:
            leaf["divergence"] = {key: None if _is_infinite(one) else one for key, one in numbers.items()}
    return {"a": names[0], "b": names[1], "equal": found.is_empty, **document, "read_bytes": read_bytes}


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _print_difference(names: list[dict[str, str]], found: Difference, top: int) -> None:
    console = console_for_tables()
    for side, name in zip("AB", names, strict=True):
        print_line(console, f"{side}: {name['checkpoint']} at {name['root']}")
    if found.is_empty:
        print_line(console, "the two are equal, to the bit")
    if found.progress:
        moved = [f"{name} {a} -> {b} ({b - a:+d})" for name, (a, b) in found.progress.items()]
        print_line(console, f"progress: {', '.join(moved)}")
    if found.ranks[0] != found.ranks[1]:
        print_line(console, f"ranks: {found.ranks[0]} -> {found.ranks[1]}; what both have of the state is compared")
    console.print(_roles(found))
    if found.leaves and top:
        console.print(_leaves(list(in_order_of_size(found.leaves))[:top]))
        if len(found.leaves) > top:
            print_line(console, f"{len(found.leaves) - top} more leaves differ; --top shows more, --json all")
    for one in found.state[:_STATE_SHOWN]:
        rank = f"rank {one.rank}: " if max(found.ranks) > 1 else ""
        print_line(console, f"state: {rank}{one.path}: {one.a} -> {one.b}")
    if len(found.state) > _STATE_SHOWN:
        print_line(console, f"state: {len(found.state) - _STATE_SHOWN} more places differ; --json shows all")
    if found.suspicion is not None:
        print_line(console, f"SUSPICIOUS: {found.suspicion}", style="bold red")


def _roles(found: Difference) -> Table:
    table = plain_table("leaves")
    for column in ("role", "equal", "differing", "only in A", "only in B"):
        table.add_column(column, justify="left" if column == "role" else "right")
    for role, count in found.roles.items():
        table.add_row(role, *map(str, (count.equal, count.differing, count.only_in_a, count.only_in_b)))
    return table


def _leaves(leaves: Iterable[LeafDifference]) -> Table:
    table = plain_table("what differs, the most first; abs, relative and ulps at most")
    table.add_column("leaf", overflow="fold", min_width=16)
    table.add_column("role", no_wrap=True)
    for column in ("elements", "abs", "relative", "ulps", "NaN A/B", "first at"):
        table.add_column(column, justify="right", no_wrap=column != "elements")
    for leaf in leaves:
        name = Text(visible(leaf.name if leaf.rank is None else f"{leaf.name} (rank {leaf.rank})"))
        one = leaf.divergence
        if one is None:
            what = {"form": f"A: {leaf.form_a}, B: {leaf.form_b}"}.get(
                leaf.kind, f"{leaf.kind[:-1]}{leaf.kind[-1].upper()}"
            )
            table.add_row(name, leaf.role, Text(what), *["-"] * 5)
            continue
        first = ",".join(map(str, one.first or ()))
        table.add_row(
            name,
            leaf.role,
            f"{one.differing}/{one.elements}",
            _number(one.max_abs),
            _number(one.max_relative),
            _number(one.max_ulps),
            f"{one.nans_a}/{one.nans_b}" if one.nans_a or one.nans_b else "-",
            Text(f"[{first}]"),
        )
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
