"""Loads the contents of an opened checkpoint, and verifies bytes against their digests.

Guarantees: sizes on storage are compared before memory is allocated or a byte is read, so a hostile manifest cannot
ask for more than what is stored. Everything that `load` itself has read is verified. Threads: any.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from ckptkit.checkpoint.leaves import StoredLeaves
from ckptkit.checkpoint.open import OpenedCheckpoint, missing
from ckptkit.checkpoint.stream import ShardStream
from ckptkit.core.contents import Buffers, Contents
from ckptkit.core.tensors import bytes_of
from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.layout import frozen_folder
from ckptkit.storage import Storage


def load(
    storage: Storage,
    opened: OpenedCheckpoint,
    rank: int = 0,
    *,
    report: Callable[[int], None] | None = None,
    sizes_known: bool = False,
) -> Contents:
    """Load the contents for ``rank``: its own tensors and state, and the tensors that all ranks share."""
    if not sizes_known:
        check_sizes(storage, opened)
    return _contents(storage, opened, StoredLeaves(opened.ranks), rank, report=report)


def _contents(
    storage: Storage,
    opened: OpenedCheckpoint,
    stored: StoredLeaves,
    rank: int,
    *,
    report: Callable[[int], None] | None,
) -> Contents:
    document = opened.ranks[rank]
    leaves = stored.of_rank(rank)
    entries = {name: leaf.info for name, leaf in leaves.items()}
    stream = ShardStream(storage, opened.name, leaves, report)
    state_tensors = {name: one.empty() for name, one in entries.items() if one.role == "state"}
    stream.read_into(Buffers({name: bytes_of(array).data for name, array in state_tensors.items()}))
    return Contents(
        str(opened.name),
        opened.manifest.progress,
        entries,
        document.state,
        state_tensors,
        stream,
        rank=rank,
        world_size=opened.manifest.world_size,
        of_rank=functools.partial(_contents, storage, opened, stored, report=report),
        root=storage.url,
    )


def verify(storage: Storage, opened: OpenedCheckpoint) -> None:
    check_sizes(storage, opened)
    StoredLeaves(opened.ranks)
    stream = ShardStream(storage, opened.name, {})
    for document in opened.ranks:
        stream.prove_files(document.shards)


def check_sizes(storage: Storage, opened: OpenedCheckpoint) -> None:
    shards = [shard for document in opened.ranks for shard in document.shards]
    # One walk covers the folders of all ranks; only shared frozen shards lie elsewhere.
    found = dict(storage.walk(f"{opened.name.folder}/"))
    folder = frozen_folder(opened.name.attempt)
    if any(shard.key.startswith(f"{folder}/") for shard in shards):
        found.update({f"{folder}/{file}": size for file, size in storage.list(folder).files.items()})
    for shard in shards:
        if found.get(shard.key) != shard.size_bytes:
            with contextlib.suppress(FileNotFoundError):
                storage.read(shard.key, 0)  # raises if a link is there, or something else that is no file
        if shard.key not in found:
            raise missing(storage, opened.name, shard.key)
        if found[shard.key] != shard.size_bytes:
            raise CorruptCheckpointError(f"{shard.key} has {found[shard.key]} bytes, expected {shard.size_bytes}")
