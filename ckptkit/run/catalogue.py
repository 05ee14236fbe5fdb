"""Lists checkpoints for people and programs: what is there, how far it is, how large.

Guarantees: reads and never writes; a checkpoint whose documents are corrupt is listed with the reason. It does
not read shards: that is `ckptkit.run.verify`. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, FormatVersionError
from ckptkit.progress import Progress
from ckptkit.run.find import Index, choose
from ckptkit.run.names import CheckpointName
from ckptkit.run.origin import read_run, refuse_unfinished
from ckptkit.run.read import open_checkpoint
from ckptkit.storage import Storage


@dataclass(frozen=True)
class CheckpointInfo:
    """One committed checkpoint.

    Attributes:
        name: What `resume(checkpoint=...)` takes.
        attempt: Number of the attempt that wrote it.
        progress: Where it stands; None where its documents cannot be read.
        created_at: ISO 8601, by the clock of the writing process; for people only.
        size_bytes: Of all shards.
        metrics: Given at the save; None for one that was not finite.
        problem: Why it cannot be used, as far as its documents tell; None where they are sound.
    """

    name: str
    attempt: int
    progress: Progress | None = None
    created_at: str = ""
    size_bytes: int = 0
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    problem: str | None = None


def list_checkpoints(storage: Storage) -> list[CheckpointInfo]:
    """Every committed checkpoint, oldest attempt first.

    Raises:
        StorageError: If the storage failed.
    """
    index = Index(storage)
    found = (_describe(storage, index, name) for name in index.names if index.is_committed(name))
    return [info for info in found if info is not None]


def latest_checkpoint(storage: Storage) -> CheckpointInfo | None:
    """The checkpoint that a start would try first, or None for a fresh start.

    Raises:
        ResumeError: If the run is a copy that has not ended.
        CkptKitError: As `choose`.
    """
    index = Index(storage)
    refuse_unfinished(storage, index, read_run(storage))
    candidates = choose(index).candidates
    return _describe(storage, index, candidates[0]) if candidates else None


def _describe(storage: Storage, index: Index, name: CheckpointName) -> CheckpointInfo | None:
    try:
        opened = open_checkpoint(storage, name, index.document(name.attempt))
    except CheckpointNotFoundError:
        return None  # removed since it was listed
    except (CorruptCheckpointError, FormatVersionError) as error:
        return CheckpointInfo(str(name), name.attempt, problem=str(error))
    manifest = opened.manifest
    return CheckpointInfo(
        name=str(name),
        attempt=name.attempt,
        progress=manifest.progress,
        created_at=manifest.created_at,
        size_bytes=opened.size_bytes,
        metrics=manifest.metrics,
    )
