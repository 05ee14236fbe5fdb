"""Implements ``ckptkit show``; ``docs/cli.md`` describes the JSON.

Documents are read and compared with each other. Tensor bytes are read only for ``--tensor``, and verified while they
are read. Reads and never writes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import JsonValue

from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.checkpoint.read import load
from ckptkit.checkpoint.shard_bytes import StoredLeaves
from ckptkit.cli.errors import FINE, WrongUsageError
from ckptkit.cli.options import AsJson, Checkpoint, Options, Root, open_root
from ckptkit.cli.output import Part, ago, plain, print_result, table_of
from ckptkit.core.contents import Buffers, TensorInfo
from ckptkit.core.progress import Progress
from ckptkit.core.state_encoding import decode_tree
from ckptkit.core.tensors import ROLES, Array, bytes_of, values_of
from ckptkit.core.text import many, size, some
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import RankManifest, ShardEntry, digest_of
from ckptkit.run.index import Documents
from ckptkit.run.resolve import LATEST, open_wanted
from ckptkit.storage import Storage

_MOST_FILES = 60  # a job with thousands of ranks has tens of thousands
_MOST_ITEMS = 8  # named of what else is stored
_MOST_TEXT = 100

Document = dict[str, Any]


def run_show(
    root: Root,
    checkpoint: Checkpoint = LATEST,
    *,
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    tensor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read this tensor, verify it and summarise its elements.")
    ] = None,
    state: Annotated[
        bool, typer.Option("--state", help="Show the state besides the model's tensors: counters, data position, RNG.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Show this rank. Default: all files; tensors and state of rank 0.")
    ] = None,
    options: Options = None,
    as_json: AsJson = False,
) -> int:
    """Show what is inside a checkpoint: progress, files by role with their digests, and more on request.

    Exits with 1 if a document of it, or the tensor asked for, is corrupt; all bytes are for ckptkit verify.

    Examples:
        ckptkit show runs/vit-17
        ckptkit show runs/vit-17 a000002-c0000001200-m0002 --tensors
        ckptkit show s3://bucket/vit-17 --tensor head.weight
    """
    storage = open_root(root, options)
    document = document_of(storage, checkpoint, rank=rank, lists_tensors=tensors, tensor=tensor, with_state=state)
    printed = {name: value for name, value in document.items() if name != "roles"}  # a sum that only the text gives
    print_result(printed, parts_of(document, datetime.now(timezone.utc)), as_json=as_json)
    return FINE


def document_of(
    storage: Storage,
    checkpoint: str = LATEST,
    *,
    rank: int | None = None,
    lists_tensors: bool = False,
    tensor: str | None = None,
    with_state: bool = False,
) -> Document:
    """Return what ``--json`` prints, and ``roles``, the number of tensors by role.

    ``rank`` None stands for all files, and for the tensors and the state of rank 0.
    """
    opened = open_wanted(storage, checkpoint)
    attempt = Documents(storage).document(opened.name.attempt)
    manifest, ranks = opened.manifest, opened.manifest.world_size
    own = rank or 0
    if not 0 <= own < ranks:
        raise WrongUsageError(f"{opened.name} has the ranks 0 to {ranks - 1}; there is no rank {own}")
    # Tensors that several ranks have, or parts of, count once.
    names = {(shard.role, tensor.name) for _, shard in _shards(opened, rank) for tensor in shard.tensors}
    counts = Counter(role for role, _ in names)
    tensors = None
    if lists_tensors:
        leaves = StoredLeaves(opened.ranks).of_rank(own)
        tensors = [_described(name, leaves[name].info) for name in sorted(leaves)]
    return {
        "root": storage.url,
        "checkpoint": manifest.checkpoint,
        "created_at": manifest.created_at,
        "progress": plain(manifest.progress),
        "mid_cycle": manifest.mid_cycle,
        "world_size": ranks,
        "size_bytes": manifest.size_bytes,
        "save_number": opened.ranks[0].save_number,
        "attempt": attempt.model_dump(include={"attempt", "parent", "branch", "host", "created_at", "passed_over"}),
        "metrics": manifest.metrics,
        "libraries": manifest.libraries,
        "cost": plain(manifest.cost),
        "rank": own,
        "roles": {role: counts[role] for role in ROLES if counts[role]},
        "files": [
            {
                "key": shard.key,
                "rank": document.rank,
                "role": shard.role,
                "placement": shard.placement,
                "tensors": len(shard.tensors),
                "size_bytes": shard.size_bytes,
                "digest": shard.digest,
            }
            for document, shard in _shards(opened, rank)
        ],
        "tensors": tensors,
        "tensor": None if tensor is None else _read(storage, opened, own, tensor),
        "state": opened.ranks[own].state if with_state else None,
        "observed": _observed(opened, own),
    }


def _shards(opened: OpenedCheckpoint, rank: int | None) -> Iterator[tuple[RankManifest, ShardEntry]]:
    for document in opened.ranks:
        for shard in document.shards:
            if rank in (None, document.rank) or shard.placement != "per_rank":
                yield document, shard


def _observed(opened: OpenedCheckpoint, rank: int) -> Document | None:
    """Return the paths of what the training changes besides what the script gave to the checkpoint."""
    section: Any = opened.ranks[rank].state.get("observed")
    if section is None:
        return None
    try:
        paths = [path for path, _, _, _ in section["slots"]]
        return {"stored": paths, "unstored": dict(decode_tree(section["unstored"], {}))}
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptCheckpointError(f"{opened.name}: the section observed is malformed: {error!r}") from error


def _described(name: str, info: TensorInfo) -> Document:
    return {
        "name": name,
        "role": info.role,
        "dtype": info.dtype,
        "shape": list(info.shape),
        "size_bytes": info.size_bytes,
        "placement": info.placement,
    }


def _read(storage: Storage, opened: OpenedCheckpoint, rank: int, name: str) -> Document:
    contents = load(storage, opened, rank)
    if name not in contents.entries:
        near = difflib.get_close_matches(name, contents.entries, n=5, cutoff=0.4)
        hint = f"the nearest are {', '.join(near)}" if near else "--tensors lists them"
        raise WrongUsageError(f"{opened.name} holds no tensor {name!r} for rank {rank}; {hint}")
    info = contents.entries[name]
    if name in contents.state_tensors:
        bits = contents.state_tensors[name]
    else:
        bits = info.empty()
        contents.read_into(Buffers({name: bytes_of(bits).data}))
    return {**_described(name, info), "digest": digest_of(bytes_of(bits).data), **summarise(info.dtype, bits)}


def parts_of(document: Document, now: datetime) -> Iterator[Part]:
    """Yield the text for a document: of the tensor that was read, or else of everything."""
    if document["tensor"] is not None:
        yield from _lines_of_tensor(document, document["tensor"])
        return
    for label, text in _facts(document, now):
        yield f"{label:<12} {text}"
    yield ""
    yield from _parts_of_files(document["files"], document["roles"])
    if document["tensors"] is not None:
        yield ""
        names = ("tensor", "role", "dtype", "shape", ">size", "placement")
        yield from table_of(names, map(_cells, document["tensors"]), spare=("placement",))
    if document["state"] is not None:
        yield f"\nstate of rank {document['rank']}"
        for section, value in document["state"].items():
            if section != "observed":
                yield from _tree(section, value, "  ")
                continue
            yield "  observed:"
            for path, _, _, packed in value["slots"]:  # of what is no plain value, how it is packed
                yield from _tree(path, packed[1] if packed[0] == "=" else packed, "    ")


def _facts(document: Document, now: datetime) -> Iterator[tuple[str, str]]:
    attempt, cost, age = document["attempt"], document["cost"], ago(document["created_at"], now)
    began = "started fresh" if attempt["parent"] is None else f"continued from {attempt['parent']}"
    branch = f", chosen as {attempt['branch']}" if attempt["branch"] is not None else ""
    metrics = [f"{name} {'not finite' if value is None else value}" for name, value in document["metrics"].items()]
    yield "checkpoint", document["checkpoint"]
    yield "root", document["root"]
    yield "progress", _progress(Progress(**document["progress"]))
    saved = f"{document['created_at']}{'' if age == '-' else f', {age} ago'}"
    yield "saved", f"{saved}; save {document['save_number']}"
    yield "attempt", f"{attempt['attempt']}, on {attempt['host']} since {attempt['created_at']}; {began}{branch}"
    for passed in attempt["passed_over"]:
        yield "passed over", f"{passed['checkpoint']}: {passed['reason']}"
    yield "ranks", str(document["world_size"])
    yield "size", size(document["size_bytes"])
    yield "metrics", ", ".join(metrics) or "none"
    yield "libraries", ", ".join(f"{name} {version}" for name, version in document["libraries"].items()) or "none"
    yield (
        "cost",
        f"training waited for {cost['stall_seconds']:.3f} s; writing took "
        f"{cost['write_seconds']:.3f} s, digests {cost['digest_seconds']:.3f} s",
    )
    observed = document["observed"] or {"stored": [], "unstored": {}}
    if observed["stored"]:
        yield "also stored", some(observed["stored"], _MOST_ITEMS)
    if observed["unstored"]:
        yield "not stored", some([f"{path} ({why})" for path, why in observed["unstored"].items()], _MOST_ITEMS)


def _progress(at: Progress) -> str:
    if at.counts_batches:
        return f"epoch {at.epoch}, batch {at.batch}; {at.batches_delivered} batches delivered, each counted as a step"
    where = "at a boundary" if at.at_boundary else "mid-cycle"
    return (
        f"epoch {at.epoch}, batch {at.batch}; {at.updates} updates in {at.cycles} cycles; micro-step {at.micro_step} "
        f"of {at.accumulation_steps} ({where}); {at.batches_delivered} batches delivered"
    )


def _parts_of_files(files: list[Document], roles: dict[str, int]) -> Iterator[Part]:
    """Yield the files below their roles, which come with their numbers of files and tensors, and their bytes."""
    rows: list[tuple[str, ...]] = []
    styles, left = [], _MOST_FILES
    for role, tensors in roles.items():
        of_role = [file for file in files if file["role"] == role]
        total = sum(file["size_bytes"] for file in of_role)
        rows.append((f"{role}: {many(len(of_role), 'file')}", str(tensors), size(total), "", ""))
        for file in of_role[:left]:
            # Without the checkpoint's own folder, which is printed above the table.
            key = re.sub("^checkpoints/[^/]*/", "", file["key"])
            rows.append((f"  {key}", str(file["tensors"]), size(file["size_bytes"]), file["placement"], file["digest"]))
        styles += ["bold", *[""] * len(of_role[:left])]
        left = max(0, left - len(of_role))
    columns = ("file", ">tensors", ">size", "placement", "digest")
    yield from table_of(columns, rows, spare=("digest", "placement"), styles=styles)
    if len(files) > _MOST_FILES:
        more = len(files) - _MOST_FILES
        yield f"{more} more files not shown; --rank N shows those of one rank, --json all of them"


def _cells(tensor: Document) -> tuple[str, ...]:
    shape, placement = _shape(tensor["shape"]), tensor["placement"]
    return tensor["name"], tensor["role"], tensor["dtype"], shape, size(tensor["size_bytes"]), placement


def _shape(shape: list[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _lines_of_tensor(document: Document, tensor: Document) -> Iterator[str]:
    where = "" if tensor["placement"] != "per_rank" else f" of rank {document['rank']}"
    yield f"{tensor['name']}{where} in {document['checkpoint']}"
    yield ", ".join([tensor["role"], f"{tensor['dtype']} {_shape(tensor['shape'])}", *_cells(tensor)[-2:]])
    yield f"digest    {tensor['digest']} (every byte of its file verified)"
    if tensor["dtype"] == "C64":
        yield "of the magnitudes of its complex numbers:"
    for label, name in (("min", "minimum"), ("max", "maximum"), ("mean", "mean"), ("std", "std"), ("norm", "norm")):
        value = tensor[name]
        yield f"{label:<9} {'-' if value is None else f'{value:.9g}' if isinstance(value, float) else value}"
    counts = f"{tensor['zeros']} zero, {tensor['nan']} NaN, {tensor['infinite']} infinite"
    yield f"elements  {tensor['count']}: {counts}"


def summarise(dtype: str, bits: Array) -> Document:
    """Return the statistics of a tensor, given as it is stored, in float64; None for one that does not exist there.

    NaN and infinities are counted and enter nothing else. Complex numbers count by their magnitudes.
    """
    values: Any = values_of(dtype, bits.reshape(-1))
    if values.dtype.kind in "bc":
        values = values.view(np.uint8) if values.dtype.kind == "b" else np.abs(values)
    numbers = values[np.isfinite(values)]
    nan = int(np.isnan(values).sum())
    with np.errstate(over="ignore", invalid="ignore"):
        wide = numbers.astype(np.float64)
        statistics = (wide.mean(), wide.std(), np.sqrt(np.square(wide).sum())) if wide.size else (None, None, 0.0)
    mean, std, norm = (None if value is None else plain(float(value)) for value in statistics)
    return {
        "count": bits.size,
        "finite": numbers.size,
        "minimum": numbers.min().item() if numbers.size else None,  # exact, also of large integers
        "maximum": numbers.max().item() if numbers.size else None,
        "mean": mean,
        "std": std,
        "norm": norm,
        "zeros": numbers.size - int(np.count_nonzero(numbers)),
        "nan": nan,
        "infinite": bits.size - numbers.size - nan,
    }


def _tree(label: str, value: JsonValue, indent: str) -> Iterator[str]:
    """Yield a section of the state: its names as a tree, and each value as JSON, encoded by `core.state_encoding`."""
    if isinstance(value, dict) and value and not any(key.startswith("$") for key in value):
        yield f"{indent}{label}:"
        for key, item in value.items():
            yield from _tree(key, item, f"{indent}  ")
        return
    text = json.dumps(value, ensure_ascii=False)
    more = f"... ({len(text)} characters)" if len(text) > _MOST_TEXT else ""
    yield f"{indent}{label}: {text[:_MOST_TEXT]}{more}"
