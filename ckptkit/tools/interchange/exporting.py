"""Writes the weights of a checkpoint into a file that MindSpore reads.

Guarantees: all data is verified against the checkpoint's digests; only then does the file appear, whole and durable.
Memory holds the tensors of one file of the checkpoint. The run is only read, and its job may be running.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Contents, TensorInfo
from ckptkit.core.tensors import Array, LeafSpec, Role
from ckptkit.run.index import Index
from ckptkit.run.ownership import read_run, refuse_unfinished
from ckptkit.run.resolve import LATEST, open_wanted
from ckptkit.storage import Storage, open_storage
from ckptkit.tools.interchange.atomic_file import new_file
from ckptkit.tools.interchange.names import Renames
from ckptkit.tools.interchange.weights_file import FileFormat, Write, ckpt_writer, format_of, safetensors_writer


@dataclass(frozen=True)
class Exported:
    """Describes a completed export.

    Attributes:
        checkpoint: The checkpoint that was read.
        file: The file that was written.
        format: Its format.
        tensors: How many it holds.
        size_bytes: Size of the file.
        left_out: Parts of the checkpoint that are not in it, in words.
        rank: The rank whose tensors were taken if each rank has its own.
        per_rank: Names, as in the checkpoint, of tensors that several ranks have their own version of.
    """

    checkpoint: str
    file: str
    format: FileFormat
    tensors: int
    size_bytes: int
    left_out: tuple[str, ...]
    rank: int
    per_rank: tuple[str, ...]


def export_weights(
    root: str | os.PathLike[str] | Storage,
    file: str | os.PathLike[str],
    *,
    checkpoint: str = LATEST,
    with_optimizer: bool = False,
    renames: Renames | None = None,
    rank: int = 0,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Exported:
    """Write the weights of a checkpoint to ``file``.

    Args:
        root: The run root.
        file: A local path that ends in ``.ckpt`` or ``.safetensors``.
        checkpoint: As for `CheckpointManager.restore`.
        with_optimizer: Also write the optimizer's tensors, and what the train cell owns, such as a loss scale.
        renames: From the names in the checkpoint to those in the file.
        rank: The rank to take if each rank has its own tensor, such as statistics of batch normalization.
        overwrite: Whether ``file`` may exist.
        storage_options: For the storage's backend.

    Raises:
        ValueError: If an argument is invalid, or ``file`` exists.
        CheckpointNotFoundError: If there is no such checkpoint.
        CorruptCheckpointError: If it is corrupt; names its file. Nothing was written.
        StorageError: If the run could not be read, or ``file`` not be written. Nothing of it was left.
    """
    path = Path(file)
    file_format = format_of(os.fspath(file))
    storage = open_storage(root, storage_options)
    refuse_unfinished(storage, Index(storage), read_run(storage))
    opened = open_wanted(storage, checkpoint)
    if not 0 <= rank < opened.manifest.world_size:
        ranks = opened.manifest.world_size
        raise ValueError(f"{opened.name} has {ranks} ranks, counted from 0; there is no rank {rank}")
    contents = load(storage, opened, rank)
    roles: tuple[Role, ...] = ("weights", "optimizer") if with_optimizer else ("weights",)
    # Each tensor once: all that the chosen rank has, and the rest from the others.
    others = [contents.of_rank(number) for number in range(contents.world_size) if number != contents.rank]
    sources: list[tuple[Contents, list[str]]] = []
    entries: dict[str, TensorInfo] = {}
    for source in (contents, *others):
        names = [name for name, entry in source.entries.items() if entry.role in roles and name not in entries]
        entries |= {name: source.entries[name] for name in names}
        sources.append((source, names))
    owned = [name for name, entry in entries.items() if entry.role == "optimizer"]
    renamed = (renames or Renames()).applied(sorted(entries), owned)
    leaves = {
        old: LeafSpec(new, "weights", "micro", entries[old].dtype, entries[old].shape)
        for old, new in sorted(renamed.items())
    }
    if not leaves:
        raise ValueError("no tensor is left to export")
    with new_file(path, overwrite=overwrite) as new:
        write = (ckpt_writer if file_format == "ckpt" else safetensors_writer)(new, [*leaves.values()])
        for source, names in sources:
            if names:
                source.read_into(_Arriving({name: leaves[name] for name in names if name in leaves}, write))
    return Exported(
        contents.checkpoint,
        str(path),
        file_format,
        len(renamed),
        new.size_bytes,
        _left_out(contents, with_optimizer=with_optimizer, dropped=len(entries) - len(renamed)),
        rank,
        tuple(
            name
            for name, entry in sorted(contents.entries.items())
            if contents.world_size > 1 and entry.placement == "per_rank" and name in entries
        ),
    )


class _Arriving:
    """Provides memory for the tensors of one rank, by name, and writes each to its file once it is filled."""

    def __init__(self, wanted: Mapping[str, LeafSpec], write: Write) -> None:
        self.names: Collection[str] = wanted.keys()
        self._wanted = wanted
        self._write = write
        self._open: dict[str, Array] = {}

    def ready(self, name: str) -> None:
        """Return None: the tensors of a file, or of a window of small ones, leave memory before the next are read."""

    def buffer(self, name: str) -> memoryview:
        bits = self._open[name] = np.empty(self._wanted[name].size_bytes, np.uint8)
        return bits.data

    def done(self, name: str) -> None:
        leaf = self._wanted[name]
        self._write(leaf, self._open.pop(name).data)


def _left_out(contents: Contents, *, with_optimizer: bool, dropped: int) -> tuple[str, ...]:
    words = []
    roles = [entry.role for entry in contents.entries.values()]
    owned = roles.count("optimizer")
    if owned and not with_optimizer:
        words.append(f"the optimizer's state ({owned} tensors)")
    if "accumulators" in roles:
        at = contents.progress
        words.append(f"the accumulators, after micro-step {at.micro_step} of {at.accumulation_steps}")
    if dropped:
        words.append(f"{dropped} tensors that were dropped by name")
    return (*words, "counters", "random state", "data position", "stateful objects")
