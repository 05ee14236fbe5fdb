"""Writes the weights of a checkpoint into a file that MindSpore reads, or into several with an index.

Guarantees: all data is verified against the checkpoint's digests; only then does a file appear, whole and durable. Of
several, the index appears last. Bits are not changed. Memory holds one tensor, or a few if ranks hold pieces of one.
The run is only read, and its job may be running. Any single thread.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Contents
from ckptkit.core.progress_bar import LongWait
from ckptkit.core.tensors import Array, Role
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.run.fence import read_run, refuse_unfinished
from ckptkit.run.index import Index
from ckptkit.run.resolve import choose
from ckptkit.storage import Storage, open_storage
from ckptkit.storage.system_calls import SYSTEM
from ckptkit.tools.interchange import ckpt_format, safetensors_format
from ckptkit.tools.interchange.atomic_file import NewFile
from ckptkit.tools.interchange.places import FileFormat, FileTensor, Layout, Named, format_of
from ckptkit.tools.interchange.renames import Renames
from ckptkit.tools.interchange.shard_index import index_of, index_path, part_paths, parts_of

_LAYOUTS = {"ckpt": ckpt_format.layout_of, "safetensors": safetensors_format.layout_of}


@dataclass(frozen=True)
class Exported:
    """Describes a completed export.

    Attributes:
        checkpoint: The checkpoint that was read.
        file: The file that was written, or the index of several.
        format: Its format.
        tensors: How many it holds.
        size_bytes: Size of the file, or of all files without the index.
        files: How many files there are, without the index.
        left_out: Parts of the checkpoint that are not in it, in words.
        rank: The rank whose tensors were taken if each rank has its own.
        per_rank: Names, as in the checkpoint, of tensors that several ranks have their own version of.
    """

    checkpoint: str
    file: str
    format: FileFormat
    tensors: int
    size_bytes: int
    files: int
    left_out: tuple[str, ...]
    rank: int
    per_rank: tuple[str, ...]


def export_weights(
    root: str | os.PathLike[str] | Storage,
    file: str | os.PathLike[str],
    *,
    checkpoint: str = "latest",
    file_format: str | None = None,
    most_bytes: int | None = None,
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
        checkpoint: ``"latest"`` or a name.
        file_format: ``"ckpt"`` or ``"safetensors"``; None for the one that the file's name gives.
        most_bytes: How many bytes of tensors a file may hold: for ``model.safetensors``, what is more becomes
            ``model-00001-of-00002.safetensors`` and so on, with the index ``model.safetensors.index.json``. A larger
            tensor gets a file of its own.
        with_optimizer: Also write the optimizer's tensors, and what the train cell owns, such as a loss scale.
        renames: From the names in the checkpoint to those in the file.
        rank: The rank to take if each rank has its own tensor, such as statistics of batch normalization.
        overwrite: Whether what is written may exist.
        storage_options: For the storage's backend.

    Raises:
        ValueError: If an argument is invalid, or ``file`` exists.
        CheckpointNotFoundError: If there is no such checkpoint.
        CorruptCheckpointError: If it is corrupt; names its file. Nothing was written.
        StorageError: If the run could not be read, or ``file`` not be written. Nothing of it was left.
    """
    path = Path(file)
    chosen_format = format_of(os.fspath(file), file_format)
    storage = open_storage(root, storage_options)
    contents = _opened(storage, checkpoint, rank)
    roles: tuple[Role, ...] = ("weights", "optimizer") if with_optimizer else ("weights",)
    sources = _sources(contents, roles)
    names = {name for one in sources for name in one.names}
    info = {name: one.contents.entries[name] for one in sources for name in one.names}
    after = {name for name, one in info.items() if one.role == "optimizer"}
    renamed = (renames or Renames()).applied(sorted(names), after)
    tensors = [Named(new, info[old].dtype, info[old].shape) for old, new in sorted(renamed.items())]
    parts = [tensors] if most_bytes is None else _cut(tensors, most_bytes, chosen_format)
    layouts = [_LAYOUTS[chosen_format](one) for one in parts]
    size_bytes = sum(one.size_bytes for one in layouts)
    with LongWait(f"exporting {contents.checkpoint}", size_bytes) as wait:
        written = _write(sources, renamed, layouts, path, wait, overwrite=overwrite)
    return Exported(
        contents.checkpoint,
        str(written),
        chosen_format,
        len(renamed),
        size_bytes,
        len(parts),
        _left_out(contents, with_optimizer=with_optimizer, dropped=len(names) - len(renamed)),
        rank,
        _per_rank(contents, names),
    )


def _write(
    sources: Sequence[_Source],
    renamed: Mapping[str, str],
    layouts: Sequence[Layout],
    path: Path,
    wait: LongWait,
    *,
    overwrite: bool,
) -> Path:
    """Write one file for each layout, and the index of several; return the file that stands for all."""
    paths = part_paths(path, len(layouts))
    is_sharded = len(layouts) > 1
    with ExitStack() as stack:
        opened = [
            stack.enter_context(NewFile(one, layout.size_bytes, overwrite=overwrite))
            for one, layout in zip(paths, layouts, strict=True)
        ]
        if is_sharded:
            text = index_of({file.name: layout.tensors for file, layout in zip(paths, layouts, strict=True)})
            path = index_path(path)
            index = stack.enter_context(NewFile(path, len(text), overwrite=overwrite))
            index.put(memoryview(text), 0)
            opened.append(index)
        targets: dict[str, tuple[FileTensor, NewFile]] = {}
        for target, layout in zip(opened, layouts, strict=False):
            for offset, frame in layout.frames:
                target.put(memoryview(frame), offset)
            targets.update({name: (one, target) for name, one in layout.tensors.items()})
        for one in sources:
            wanted = {name: targets[renamed[name]] for name in one.names if name in renamed}
            one.contents.read_into(_Arriving(one.contents, wanted, wait))
        if is_sharded and overwrite:
            _remove(path)  # an old index would name files of both, if this ends in between
        for target in opened:  # the index last
            target.publish()
    return path


def _remove(path: Path) -> None:
    try:
        with contextlib.suppress(FileNotFoundError):
            SYSTEM.unlink(path)
            SYSTEM.fsync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"could not remove {path}: {error.strerror or error}. Nothing was changed") from error


def _cut(tensors: Sequence[Named], most_bytes: int, chosen_format: FileFormat) -> list[list[Named]]:
    if chosen_format != "safetensors":
        raise ValueError(f"only .safetensors can be cut into several files, not .{chosen_format}")
    if most_bytes < 1:
        raise ValueError(f"a file must be allowed to hold at least a byte, got {most_bytes}")
    return parts_of(tensors, most_bytes)


def _opened(storage: Storage, checkpoint: str, rank: int) -> Contents:
    index = Index(storage)
    refuse_unfinished(storage, index, read_run(storage))
    name = choose(index, checkpoint, rewind=True).first
    if name is None:
        raise CheckpointNotFoundError(f"there is no committed checkpoint at {storage.url}")
    opened = open_checkpoint(storage, name, index.document(name.attempt))
    if not 0 <= rank < opened.manifest.world_size:
        raise ValueError(f"{name} has {opened.manifest.world_size} ranks, counted from 0; there is no rank {rank}")
    return load(storage, opened, rank)


@dataclass(frozen=True)
class _Source:
    """Holds what is taken from one rank."""

    contents: Contents
    names: tuple[str, ...]


def _sources(contents: Contents, roles: Collection[Role]) -> list[_Source]:
    """Return every leaf of ``roles`` once: all that the chosen rank has, and the rest from the others."""
    found: list[_Source] = []
    seen: set[str] = set()
    for one in _of_all_ranks(contents):
        names = tuple(name for name, info in one.entries.items() if info.role in roles and name not in seen)
        seen.update(names)
        if names:
            found.append(_Source(one, names))
    return found


def _of_all_ranks(contents: Contents) -> Iterator[Contents]:
    yield contents
    for rank in range(contents.world_size):
        if rank != contents.rank:
            yield contents.of_rank(rank)


def _per_rank(contents: Contents, names: Collection[str]) -> tuple[str, ...]:
    if contents.world_size == 1:
        return ()
    entries = contents.entries
    return tuple(sorted(name for name in names & entries.keys() if entries[name].placement == "per_rank"))


class _Arriving:
    """Provides memory for the tensors of one rank, by name, and writes each to its file once it is filled."""

    def __init__(self, contents: Contents, wanted: Mapping[str, tuple[FileTensor, NewFile]], wait: LongWait) -> None:
        self.names: Collection[str] = wanted.keys()
        self._contents = contents
        self._wanted = wanted
        self._wait = wait
        self._open: dict[str, Array] = {}

    def ready(self, name: str) -> None:
        """Return None: the tensors of a file leave memory before the next one is read."""

    def buffer(self, name: str) -> memoryview:
        bits = self._open[name] = np.empty(self._contents.entries[name].size_bytes, np.uint8)
        return bits.data

    def done(self, name: str) -> None:
        """Write ``name`` to the file: all its bytes have arrived."""
        bits = self._open.pop(name).data
        tensor, target = self._wanted[name]
        at = 0
        for span in tensor.spans:
            target.put(bits[at : at + span.size_bytes], span.offset_bytes)
            at += span.size_bytes
        self._wait.advance(at)


def _left_out(contents: Contents, *, with_optimizer: bool, dropped: int) -> tuple[str, ...]:
    words = []
    owned = sum(one.role == "optimizer" for one in contents.entries.values())
    if owned and not with_optimizer:
        words.append(f"the optimizer's state ({owned} tensors)")
    if any(one.role == "accumulators" for one in contents.entries.values()):
        at = contents.progress
        words.append(f"the accumulators, after micro-step {at.micro_step} of {at.accumulation_steps}")
    if dropped:
        words.append(f"{dropped} tensors that were dropped by name")
    return (*words, "counters", "random state", "data position", "stateful objects")
