"""Uploads what a training that has died left behind: the newest checkpoint of its root that its mirrors lack.

Guarantees: the files go the way that the training's own uploads go, with the same checks. Nobody else uploads from the
root at the same time. Nothing is uploaded to a mirror where the run has been started since, so that no older checkpoint
comes after a newer one. Nothing is removed anywhere. Any single thread.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ckptkit.checkpoint.commit import read_commit
from ckptkit.errors import CheckpointNotFoundError, CkptKitError, ResumeError
from ckptkit.format.documents import AttemptDocument, Commit
from ckptkit.format.layout import CheckpointName
from ckptkit.run.homes.separation import refuse_separate, share_documents
from ckptkit.run.homes.upload import Uploader, UploadOutcome
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.run.origin import read_run, refuse_unfinished
from ckptkit.run.resolve import choose
from ckptkit.storage import RootLock, Storage, is_same_place

FlushOutcome = Literal["uploaded", "present", "void", "failed"]


@dataclass(frozen=True)
class Flushed:
    """Holds what became of the newest checkpoint at one mirror.

    Attributes:
        mirror: URL of the mirror.
        checkpoint: The checkpoint.
        outcome: ``uploaded``; ``present``: it was there; ``void``: it can never be stored there, because a start gave
            its folder up; or ``failed``.
        why: Why it failed; empty otherwise.
    """

    mirror: str
    checkpoint: str
    outcome: FlushOutcome
    why: str = ""


def lacking(root: Storage, mirrors: Sequence[Storage]) -> list[Storage]:
    """Return the mirrors that have not committed the newest checkpoint of ``root``; reads only.

    Raises:
        CkptKitError: As `flush`.
    """
    newest = _newest(root)
    if newest is None:
        return []
    return [mirror for mirror in mirrors if not _has(mirror, newest[0])]


def _has(mirror: Storage, name: CheckpointName) -> bool:
    """Return whether ``mirror`` has committed ``name``; False if it cannot be seen, and then `flush` says why."""
    try:
        return isinstance(read_commit(mirror, name), Commit)
    except CkptKitError:
        return False


def flush(root: Storage, mirrors: Sequence[Storage]) -> list[Flushed]:
    """Upload the newest checkpoint of ``root`` to each mirror that lacks it.

    Raises:
        CheckpointNotFoundError: If the root has no checkpoint.
        ValueError: If a mirror is the root.
        ResumeError: If a training of the root is still running on this machine, or another program uploads from it.
        CorruptCheckpointError: If the checkpoints of the root cannot be used.
        StorageError: If the root is no local folder, or failed. The failure of a mirror is in the outcome.
    """
    for mirror in mirrors:
        if is_same_place(root.url, mirror.url):
            raise ValueError(f"the mirror is the run root itself: {mirror.url}")
    lock = RootLock(root)
    if not lock.take_alone():
        raise ResumeError(
            f"a training at {root.url} is still running, or another program uploads from it. Nothing was uploaded. A "
            "training uploads by itself; wait for its end, or end it"
        )
    try:
        newest = _newest(root)
        if newest is None:
            raise CheckpointNotFoundError(f"{root.url} has no checkpoint, so there is nothing to upload")
        return [_flush_to(root, mirror, *newest) for mirror in mirrors]
    finally:
        lock.release()


def _newest(root: Storage) -> tuple[CheckpointName, AttemptDocument] | None:
    """Return the newest checkpoint that a start at ``root`` would take, and the document of the last start there."""
    index = Index(root)
    refuse_unfinished(root, index, read_run(root))
    name = choose(index).first
    return None if name is None else (name, index.document(max(index.attempts)))


def _flush_to(root: Storage, mirror: Storage, name: CheckpointName, attempt: AttemptDocument) -> Flushed:
    try:
        refuse_separate(root, mirror)
        share_documents(root, mirror, attempt)
        run = read_run(root)
        keep_all = KeepLatest(sys.maxsize)  # the next start knows what the mirror is to keep
        uploader = Uploader([root, mirror], mirror, attempt, run.run_id if run is not None else "", keep_all)
        outcome = uploader.upload(name)
    except CkptKitError as error:
        return Flushed(mirror.url, str(name), "failed", str(error))
    said: dict[UploadOutcome, FlushOutcome] = {"copied": "uploaded", "present": "present", "void": "void"}
    return Flushed(mirror.url, str(name), said[outcome])
