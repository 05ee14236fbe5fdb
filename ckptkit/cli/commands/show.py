"""Implements ``ckptkit show``: shows what a checkpoint holds, as text or as JSON.

``docs/cli.md`` describes the JSON. Documents are read and compared with each other. Tensor bytes are read only for
``--tensor``, and verified while they are read. Reads and never writes.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import JsonValue

from ckptkit.checkpoint.leaves import StoredLeaves
from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.checkpoint.verify import load
from ckptkit.cli.commands.tensor_stats import Histogram, Summary, histogram, summarise
from ckptkit.cli.errors import WrongUsageError
from ckptkit.cli.storage_option import open_root
from ckptkit.cli.text import print_json
from ckptkit.core.contents import Buffers, TensorInfo
from ckptkit.core.tensors import bytes_of
from ckptkit.core.tree import decode_tree
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import AttemptDocument, ShardEntry, digest_of
from ckptkit.run.index import Documents
from ckptkit.run.resolve import LATEST, open_wanted
from ckptkit.storage import Storage


@dataclass(frozen=True)
class Wanted:
    """Holds what to show besides the checkpoint itself.

    Attributes:
        rank: Rank whose files, tensors and state are shown; None for all files, and the rest of rank 0.
        tensors: Whether every tensor is listed.
        tensor: Name of the tensor to read.
        histogram: Whether its histogram is shown, too.
        state: Whether state that is not a tensor of the model is shown.
    """

    rank: int | None = None
    tensors: bool = False
    tensor: str | None = None
    histogram: bool = False
    state: bool = False


@dataclass(frozen=True)
class File:
    """Holds a file with tensors, and the rank that wrote it."""

    rank: int
    shard: ShardEntry


@dataclass(frozen=True)
class Inside:
    """Holds one tensor's numbers; the tensor was read and verified.

    Attributes:
        name: Name of the tensor.
        info: Its description in its file.
        digest: xxh3_128 of its bytes.
        summary: Summary of its elements.
        histogram: Histogram of its elements; None if not asked for.
    """

    name: str
    info: TensorInfo
    digest: str
    summary: Summary
    histogram: Histogram | None


@dataclass(frozen=True)
class ObservedPaths:
    """Holds the paths of what the training changes besides what the script gave to the checkpoint.

    Attributes:
        stored: Paths of what is stored.
        unstored: By path of what could not be stored, why.
    """

    stored: list[str]
    unstored: dict[str, str]


@dataclass(frozen=True)
class Shown:
    """Holds what was read from a checkpoint; what was not asked for is None.

    Attributes:
        url: The run root.
        opened: The documents of the checkpoint.
        attempt: The document of the attempt that wrote it.
        rank: Rank of the tensors and the state.
        files: The files with tensors.
        tensors: The listed tensors by name.
        tensor: The tensor that was read.
        state: State by section, encoded by `ckptkit.core.tree`.
        observed: What that rank's section ``observed`` names; None without one.
    """

    url: str
    opened: OpenedCheckpoint
    attempt: AttemptDocument
    rank: int
    files: list[File]
    tensors: dict[str, TensorInfo] | None = None
    tensor: Inside | None = None
    state: dict[str, JsonValue] | None = None
    observed: ObservedPaths | None = None


def run_show(
    root: str,
    checkpoint: str = LATEST,
    options: Iterable[str] = (),
    *,
    wanted: Wanted,
    now: datetime,
    as_json: bool = False,
) -> int:
    """Print a checkpoint; returns the exit code.

    Args:
        root: A path or a URL.
        checkpoint: A name, or ``latest``.
        options: Options of the storage.
        wanted: What to show besides the checkpoint itself.
        now: The time at which its age is computed.
        as_json: Whether to print one JSON document.

    Raises:
        WrongUsageError: If the checkpoint has no such rank or tensor, or an option is invalid.
        CkptKitError: As in `open_wanted`, and for a tensor as in `Contents.read_into`.
    """
    storage = open_root(root, options)
    shown = look(storage, checkpoint, wanted)
    if as_json:
        print_json(as_document(shown))
        return 0
    from ckptkit.cli.commands.show_text import print_shown

    print_shown(shown, now)
    return 0


def look(storage: Storage, checkpoint: str, wanted: Wanted) -> Shown:
    """Read what ``wanted`` asks for; raises the same exceptions as `run_show`."""
    if wanted.histogram and wanted.tensor is None:
        raise WrongUsageError("--histogram needs --tensor NAME; --tensors lists the names")
    opened = open_wanted(storage, checkpoint)
    attempt = Documents(storage).document(opened.name.attempt)
    ranks = opened.manifest.world_size
    rank = wanted.rank or 0
    if not 0 <= rank < ranks:
        raise WrongUsageError(f"{opened.name} has the ranks 0 to {ranks - 1}; there is no rank {rank}")
    tensors = None
    if wanted.tensors:
        leaves = StoredLeaves(opened.ranks).of_rank(rank)
        tensors = {name: leaves[name].info for name in sorted(leaves)}
    return Shown(
        url=storage.url,
        opened=opened,
        attempt=attempt,
        rank=rank,
        files=_files(opened, wanted.rank),
        tensors=tensors,
        tensor=_inside(storage, opened, rank, wanted) if wanted.tensor is not None else None,
        state=opened.ranks[rank].state if wanted.state else None,
        observed=_observed(opened, rank),
    )


def _observed(opened: OpenedCheckpoint, rank: int) -> ObservedPaths | None:
    section: Any = opened.ranks[rank].state.get("observed")
    if section is None:
        return None
    try:
        paths = [path for path, _, _, _ in section["slots"]]
        return ObservedPaths(paths, dict(decode_tree(section["unstored"], {})))
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptCheckpointError(f"{opened.name}: the section observed is malformed: {error!r}") from error


def _files(opened: OpenedCheckpoint, rank: int | None) -> list[File]:
    return [
        File(document.rank, shard)
        for document in opened.ranks
        for shard in document.shards
        if rank in (None, document.rank) or shard.placement != "per_rank"
    ]


def _inside(storage: Storage, opened: OpenedCheckpoint, rank: int, wanted: Wanted) -> Inside:
    name = str(wanted.tensor)
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
    counted = histogram(info.dtype, bits) if wanted.histogram else None
    digest = digest_of(bytes_of(bits).data)
    return Inside(name, info, digest, summarise(info.dtype, bits), counted)


def as_document(shown: Shown) -> dict[str, object]:
    """Return the document that ``--json`` prints."""
    manifest = shown.opened.manifest
    attempt = shown.attempt
    return {
        "root": shown.url,
        "checkpoint": manifest.checkpoint,
        "created_at": manifest.created_at,
        "progress": manifest.progress.model_dump(),
        "mid_cycle": manifest.mid_cycle,
        "world_size": manifest.world_size,
        "size_bytes": manifest.size_bytes,
        "save_number": shown.opened.ranks[0].save_number,
        "attempt": attempt.model_dump(include={"attempt", "parent", "branch", "host", "created_at", "passed_over"}),
        "metrics": manifest.metrics,
        "libraries": manifest.libraries,
        "cost": manifest.cost.model_dump(),
        "rank": shown.rank,
        "files": [_file_as_json(one) for one in shown.files],
        "tensors": None if shown.tensors is None else [_info_as_json(*one) for one in shown.tensors.items()],
        "tensor": None if shown.tensor is None else _inside_as_json(shown.tensor),
        "state": shown.state,
        "observed": None if shown.observed is None else dataclasses.asdict(shown.observed),
    }


def _file_as_json(file: File) -> dict[str, object]:
    shard = file.shard
    return {
        "key": shard.key,
        "rank": file.rank,
        "role": shard.role,
        "placement": shard.placement,
        "tensors": len(shard.tensors),
        "size_bytes": shard.size_bytes,
        "digest": shard.digest,
    }


def _info_as_json(name: str, info: TensorInfo) -> dict[str, object]:
    return {
        "name": name,
        "role": info.role,
        "dtype": info.dtype,
        "shape": list(info.shape),
        "size_bytes": info.size_bytes,
        "placement": info.placement,
    }


def _inside_as_json(inside: Inside) -> dict[str, object]:
    counted = inside.histogram
    return {
        **_info_as_json(inside.name, inside.info),
        "digest": inside.digest,
        **dataclasses.asdict(inside.summary),
        "histogram": None if counted is None else dataclasses.asdict(counted),
    }
