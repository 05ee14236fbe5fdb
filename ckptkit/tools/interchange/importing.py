"""Begins a run with the weights in a file of another program.

The first checkpoint of the run holds these weights and nothing else, and is the parent of what follows. The order:
check everything about the file; write ``run.json``, which marks an import in progress; shards, documents, ``COMMIT``;
last the document of attempt 1, without which no start takes the root for a run (`ckptkit.run.ownership`). If the file
is refused, nothing is written; if writing fails, what was written is deleted as far as possible. Weights are
copied unchanged, one window at a time. Any single thread; nothing else may use the root meanwhile.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from typing import Any

from pydantic import JsonValue

from ckptkit.checkpoint.commit import create_once, keys_below, publish
from ckptkit.checkpoint.write import FrozenShards, SaveRequest, write_manifest, write_part
from ckptkit.core.contents import IMPORTED, NOT_IMPORTED
from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import LeafSpec
from ckptkit.core.text import escaped, some
from ckptkit.errors import CorruptCheckpointError, ResumeError, StorageError
from ckptkit.format.documents import AttemptDocument, CopiedFrom, RunDocument, encode
from ckptkit.format.layout import CHECKPOINTS, RUN, CheckpointName, attempt_key
from ckptkit.format.shards import Shard, plan_shards
from ckptkit.run.ownership import check_fence
from ckptkit.storage import ByteStream, Storage, open_storage
from ckptkit.storage.lease import LEASE, PROBE
from ckptkit.tools.interchange.names import Renames, of_an_optimizer
from ckptkit.tools.interchange.weights_file import FileFormat, FileTensor, WeightsFile, open_weights

_NAME = CheckpointName(attempt=1, cycles=0, micro_step=0)
_AT_BEGIN = Progress(
    epoch=0, batch=0, cycles=0, updates=0, micro_step=0, accumulation_steps=1, batches_delivered=0, cycle_first_batch=0
)


@dataclass(frozen=True)
class Imported:
    """Describes a completed import.

    Attributes:
        file: The file that was read.
        format: Its format.
        root: Root of the new run.
        checkpoint: The checkpoint that holds the weights.
        tensors: How many it holds.
        size_bytes: Their size.
        ignored: Names in the file that were not imported: an optimizer's state, and contents that are not tensors.
        not_in_it: What a start on this root initializes afresh, in words.
    """

    file: str
    format: FileFormat
    root: str
    checkpoint: str
    tensors: int
    size_bytes: int
    ignored: tuple[str, ...]
    not_in_it: tuple[str, ...] = NOT_IMPORTED


def import_weights(
    file: str | os.PathLike[str],
    root: str | os.PathLike[str] | Storage,
    *,
    renames: Renames | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Imported:
    """Create a run at ``root`` that begins with the weights in ``file``.

    Args:
        file: A local path that ends in ``.ckpt`` or ``.safetensors``, or the ``.safetensors.index.json`` of several.
        root: An empty run root.
        renames: From the names in the file to those of the parameters to be trained.
        storage_options: For the storage's backend.

    Raises:
        ValueError: If an argument is invalid, or the file holds no weights.
        CheckpointNotFoundError: If there is no such file.
        CorruptCheckpointError: If it is truncated or something else; nothing was written.
        ResumeError: If ``root`` is not empty; nothing was written.
        StorageError: If the file could not be read, or the storage failed.
    """
    with open_weights(file) as source:
        storage = open_storage(root, storage_options)
        renames = renames or Renames()
        owned = of_an_optimizer({name: tensor.shape for name, tensor in source.tensors.items()})
        ignored = sorted(owned - renames.rules.keys())  # what a rule names in full is imported, whatever it looks like
        renamed = renames.applied([name for name in source.tensors if name not in ignored])
        if not renamed:
            raise ValueError(f"{source.path} holds no weights that could be imported")
        _refuse_anything(storage)
        tensors = {new: source.tensors[old] for old, new in renamed.items()}
        left = (*ignored, *source.others)
        _begin_run(storage, _FromFile(source, tensors, left), escaped(os.path.abspath(source.path)))
    size_bytes = sum(tensor.size_bytes for tensor in tensors.values())
    return Imported(str(file), source.format, storage.url, str(_NAME), len(tensors), size_bytes, left)


def _refuse_anything(storage: Storage) -> None:
    top = storage.list("")
    there = sorted({*top.folders, *top.files} - {LEASE, PROBE})
    if there == [CHECKPOINTS] and not storage.walk(f"{CHECKPOINTS}/"):
        return  # folders without files, which a failed import leaves on a disk
    if there:
        raise ResumeError(
            f"{storage.url} is not empty: there is {some(there)}. An import begins a new run: give it a new "
            "root. If an interrupted import left these files, delete them first"
        )


class _FromFile:
    """Implements `ckptkit.checkpoint.write.Staged` for an import: no training, and nothing that changes."""

    by_slices = False

    def __init__(self, source: WeightsFile, tensors: Mapping[str, FileTensor], left_out: tuple[str, ...]) -> None:
        self.samples: dict[str, str] = {}
        self.progress = _AT_BEGIN
        name = escaped(source.path.name)[:4096]
        self.state: Mapping[str, JsonValue] = {
            IMPORTED: {"file": name, "format": source.format, "left_out": [*left_out]}
        }
        self._tensors = dict(sorted(tensors.items()))
        leaves = [
            LeafSpec(name, "weights", "micro", tensor.dtype, tensor.shape, "replicated")
            for name, tensor in self._tensors.items()
        ]
        self.shards: tuple[Shard, ...] = tuple(plan_shards(leaves))
        self.cost = SaveCost()

    def open_shard(self, number: int, *, last: bool = True) -> ByteStream:
        return io.BufferedReader(_ShardOfFile(self.shards[number], self._tensors))

    def release(self) -> None:
        """Do nothing: the caller closes the file."""

    def advance(self, micro_steps_left: int) -> bool:
        return True


class _ShardOfFile(io.RawIOBase):
    """Streams a shard: its header, then the tensors, read from the source file."""

    def __init__(self, shard: Shard, tensors: Mapping[str, FileTensor]) -> None:
        pieces = itertools.chain([shard.header], (tensors[leaf.name].read() for leaf in shard.leaves))
        self._pieces = filter(None, pieces)  # an empty one would be the end
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._piece = self._piece or memoryview(next(self._pieces, b""))
        count = min(len(buffer), len(self._piece))
        buffer[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count


def _begin_run(storage: Storage, staged: _FromFile, source_path: str) -> None:
    now = datetime.now(timezone.utc)
    created_at = now.isoformat()
    origin = CopiedFrom(url=source_path[:4096], run_id=None, checkpoint=None, last_attempt=_NAME.attempt)
    run = encode(RunDocument(run_id=secrets.token_hex(16), created_at=created_at, copied_from=origin).sealed())
    attempt = AttemptDocument(
        attempt=_NAME.attempt,
        token=secrets.token_hex(16),
        parent=None,
        host=f"ckptkit import on {socket.gethostname()}"[:4096],
        created_at=created_at,
    ).sealed()
    storage.probe()
    if create_once(storage, RUN, run) != run:
        raise ResumeError(f"another process has just begun to write to {storage.url}")
    try:
        request = SaveRequest(_NAME, staged, {}, now, 1)
        frozen = FrozenShards(storage, attempt, partial(check_fence, storage, attempt))
        receipt = write_part(storage, attempt, request, frozen, 0)
        publish(storage, _NAME, write_manifest(storage, attempt, request, [receipt]))
    except BaseException as error:
        # The error being raised says what is wrong; what cannot be deleted prevents every start here.
        with contextlib.suppress(StorageError):
            storage.clear_unfinished(f"{_NAME.folder}/", lambda key: True)
            storage.delete(keys_below(storage, _NAME.folder))
            storage.delete([RUN])  # last: while it exists, no start takes the remains for a run
        if isinstance(error, ValueError) and not isinstance(error, CorruptCheckpointError):
            raise ResumeError(f"these weights cannot be stored: {error}") from error
        raise
    # From here on there is a checkpoint; if finishing fails, it is left for inspection.
    key, data = attempt_key(_NAME.attempt), encode(attempt)
    if create_once(storage, key, data) != data:
        raise ResumeError(f"another process has just made {key} at {storage.url}")
