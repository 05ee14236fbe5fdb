"""Prints the text output of ``ckptkit show``. Only the main thread calls it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import JsonValue
from rich.console import Console

from ckptkit.cli.commands.show import File, Inside, Shown
from ckptkit.cli.commands.tensor_stats import Histogram
from ckptkit.cli.text import ago, console_for_tables, plain_table, print_line, size, visible
from ckptkit.core.contents import TensorInfo
from ckptkit.core.progress import Progress
from ckptkit.core.tensors import ROLES
from ckptkit.core.text import some
from ckptkit.core.tree import decode_tree
from ckptkit.format.documents import AttemptDocument, Cost

_MOST_FILES = 60  # a job with thousands of ranks has tens of thousands
_MOST_ITEMS = 8  # shown of a list in the state: a random generator's has hundreds of numbers
_MOST_TEXT = 100
_BAR = 40


def print_shown(shown: Shown, now: datetime) -> None:
    """Print all of ``shown``."""
    console = console_for_tables()
    if shown.tensor is not None:
        _print_inside(console, shown, shown.tensor)
        return
    for label, text in _facts(shown, now):
        print_line(console, f"{label:<12} {text}")
    print_line(console, "")
    _print_files(console, shown.files)
    if shown.tensors is not None:
        print_line(console, "")
        _print_tensors(console, shown.tensors)
    if shown.state is not None:
        print_line(console, f"\nstate of rank {shown.rank}")
        for section, value in shown.state.items():
            for line in _observed(value) if section == "observed" else _tree(section, value, "  "):
                print_line(console, line)


def _facts(shown: Shown, now: datetime) -> Iterator[tuple[str, str]]:
    opened, manifest = shown.opened, shown.opened.manifest
    yield "checkpoint", str(opened.name)
    yield "root", shown.url
    yield "progress", _progress(manifest.progress)
    age = ago(manifest.created_at, now)
    yield "saved", f"{manifest.created_at}{'' if age == '-' else f', {age} ago'}; save {opened.ranks[0].save_number}"
    yield "attempt", _attempt(shown.attempt)
    for one in shown.attempt.passed_over:
        yield "passed over", f"{one.checkpoint}: {one.reason}"
    yield "ranks", str(manifest.world_size)
    yield "size", size(manifest.size_bytes)
    metrics = [f"{name} {'not finite' if value is None else value}" for name, value in manifest.metrics.items()]
    yield "metrics", ", ".join(metrics) or "none"
    yield "libraries", ", ".join(f"{name} {version}" for name, version in manifest.libraries.items()) or "none"
    yield "cost", _cost(manifest.cost)
    if shown.observed is not None and shown.observed.stored:
        yield "also stored", some(shown.observed.stored, _MOST_ITEMS)
    if shown.observed is not None and shown.observed.unstored:
        unstored = [f"{path} ({why})" for path, why in shown.observed.unstored.items()]
        yield "not stored", some(unstored, _MOST_ITEMS)


def _progress(at: Progress) -> str:
    if at.counts_batches:
        return f"epoch {at.epoch}, batch {at.batch}; {at.batches_delivered} batches delivered, each counted as a step"
    where = "at a boundary" if at.at_boundary else "mid-cycle"
    return (
        f"epoch {at.epoch}, batch {at.batch}; {at.updates} updates in {at.cycles} cycles; micro-step {at.micro_step} "
        f"of {at.accumulation_steps} ({where}); {at.batches_delivered} batches delivered"
    )


def _attempt(attempt: AttemptDocument) -> str:
    began = "started fresh" if attempt.parent is None else f"continued from {attempt.parent}"
    branch = f", chosen as {attempt.branch}" if attempt.branch is not None else ""
    return f"{attempt.attempt}, on {attempt.host} since {attempt.created_at}; {began}{branch}"


def _cost(cost: Cost) -> str:
    return (
        f"training waited for {cost.stall_seconds + cost.fence_wait_seconds:.3f} s; writing took "
        f"{cost.write_seconds:.3f} s, digests {cost.digest_seconds:.3f} s"
    )


def _print_files(console: Console, files: list[File]) -> None:
    table = plain_table()
    for column in ("role", "file", "tensors", "size", "digest"):
        table.add_column(column, justify="right" if column in ("tensors", "size") else "left", overflow="fold")
    left = _MOST_FILES
    for role in ROLES:
        of_role = [one for one in files if one.shard.role == role]
        if not of_role:
            continue
        names = {tensor.name for one in of_role for tensor in one.shard.tensors}
        total = size(sum(one.shard.size_bytes for one in of_role))
        many = "1 file" if len(of_role) == 1 else f"{len(of_role)} files"
        table.add_row(role, many, str(len(names)), total, "", style="bold")
        for one in of_role[:left]:
            shard = one.shard
            shared = "" if shard.placement == "per_rank" else f" ({shard.placement})"
            count = str(len(shard.tensors))
            table.add_row("", f"{_short(shard.key)}{shared}", count, size(shard.size_bytes), shard.digest)
        left = max(0, left - len(of_role))
    console.print(table, markup=False)
    if len(files) > _MOST_FILES:
        print_line(
            console,
            f"{len(files) - _MOST_FILES} more files not shown; --rank N shows those of one rank, --json all of them",
        )


def _short(key: str) -> str:
    """Return ``key`` without the checkpoint's own folder, which is printed above the table."""
    top, _, rest = key.partition("/")
    return rest.partition("/")[2] if top == "checkpoints" else key


def _print_tensors(console: Console, tensors: dict[str, TensorInfo]) -> None:
    table = plain_table()
    for column in ("tensor", "role", "dtype", "shape", "size", "placement"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for name, info in tensors.items():
        table.add_row(visible(name), info.role, info.dtype, _shape(info.shape), size(info.size_bytes), info.placement)
    console.print(table, markup=False)


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _print_inside(console: Console, shown: Shown, inside: Inside) -> None:
    info, summary = inside.info, inside.summary
    where = "" if info.placement != "per_rank" else f" of rank {shown.rank}"
    print_line(console, f"{inside.name}{where} in {shown.opened.name}")
    print_line(console, f"{info.role}, {info.dtype} {_shape(info.shape)}, {size(info.size_bytes)}, {info.placement}")
    print_line(console, f"{'digest':<9} {inside.digest} (every byte of its file verified)")
    if info.dtype == "C64":
        print_line(console, "of the magnitudes of its complex numbers:")
    values = (summary.minimum, summary.maximum, summary.mean, summary.std, summary.norm)
    for label, value in zip(("min", "max", "mean", "std", "norm"), values, strict=True):
        print_line(console, f"{label:<9} {_number(value)}")
    counts = f"{summary.zeros} zero, {summary.nan} NaN, {summary.infinite} infinite"
    print_line(console, f"{'elements':<9} {summary.count}: {counts}")
    if inside.histogram is not None:
        print_line(console, "")
        for line in bars(inside.histogram):
            print_line(console, line)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def bars(counted: Histogram) -> Iterator[str]:
    """Yield a line for each interval: its edges, its count and a bar."""
    most = max(counted.counts, default=0)
    if not most:
        yield "no finite elements"
    for low, high, count in zip(counted.edges, counted.edges[1:], counted.counts, strict=False):
        # Rounded up, so that every count above zero shows a bar.
        bar = "#" * -(-count * _BAR // most)
        yield f"{low:>12.5g} .. {high:<12.5g} {count:>12}  {bar}".rstrip()


def _tree(label: str, value: JsonValue, indent: str) -> Iterator[str]:
    """Yield the lines for a part of the state."""
    tag = next(iter(value)) if isinstance(value, dict) and len(value) == 1 else ""
    if tag.startswith("$") and isinstance(value, dict):
        yield from _tagged(label, tag, value[tag], indent)
    elif isinstance(value, dict) and value:
        yield f"{indent}{label}:"
        for key, one in value.items():
            yield from _tree(key, one, f"{indent}  ")
    elif isinstance(value, list):
        yield from _items(label, value, indent)
    else:
        yield f"{indent}{label}: {_scalar(value)}"


def _observed(section: Any) -> Iterator[str]:
    """Yield the lines of each stored value; of one that is no plain value, how it is packed."""
    yield "  observed:"
    for path, _, _, packed in section["slots"]:
        yield from _tree(path, packed[1] if packed[0] == "=" else packed, "    ")


def _items(label: str, items: list[JsonValue], indent: str) -> Iterator[str]:
    shown, more = items[:_MOST_ITEMS], len(items) - _MOST_ITEMS
    if not any(isinstance(one, dict | list) for one in items):
        rest = f", ... ({len(items)} items; --json shows all)" if more > 0 else ""
        yield f"{indent}{label}: [{', '.join(map(_scalar, shown))}{rest}]"
        return
    yield f"{indent}{label}: {len(items)} items"
    for number, one in enumerate(shown):
        yield from _tree(str(number), one, f"{indent}  ")
    if more > 0:
        yield f"{indent}  ... and {more} more; --json shows all"


def _tagged(label: str, tag: str, inner: JsonValue, indent: str) -> Iterator[str]:
    """Yield the lines for a value that JSON cannot represent directly; see `ckptkit.core.tree`."""
    if isinstance(inner, list):  # a tuple, or the pairs of a dict
        yield from _items(label, inner, indent)
        return
    if tag in ("$array", "$scalar"):
        yield f"{indent}{label}: the tensor {inner}"
        return
    try:
        value = decode_tree({tag: inner}, {})
    except ValueError:  # not written by ckptkit; show it as it is
        value = _scalar(inner)
    yield f"{indent}{label}: {f'{len(value)} bytes' if isinstance(value, bytes) else value}"


def _scalar(value: JsonValue) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}... ({len(text)} characters)"
