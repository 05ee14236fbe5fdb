"""Opens the checkpoint that a person means: the latest, or one by name.

Guarantees: reads documents and never writes; "latest" is what a start would try first, and where a running job removes
it meanwhile, the next one. Any single thread.
"""

from __future__ import annotations

from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint
from ckptkit.errors import CheckpointNotFoundError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Documents, Index
from ckptkit.run.origin import read_run, refuse_unfinished
from ckptkit.run.resolve import choose, first_choice
from ckptkit.run.survey import Survey
from ckptkit.storage import Storage

LATEST = "latest"
_LOOKS = 10  # a running job may remove what was found; so often in a row it does not


def open_wanted(storage: Storage, checkpoint: str = LATEST) -> OpenedCheckpoint:
    """Read and check the documents of ``checkpoint``.

    Raises:
        CheckpointNotFoundError: If there is no such checkpoint, or none at all; names those that there are.
        CorruptCheckpointError: If a document is missing or altered; names it.
        FormatVersionError: If it was written by a newer format.
        ResumeError: If the run is a copy of which no attempt has arrived yet.
        StorageError: If the storage failed.
    """
    if checkpoint != LATEST:
        return _named(storage, checkpoint)
    for _ in range(_LOOKS):
        name = _latest(storage)
        try:
            return _open(storage, name)
        except CheckpointNotFoundError:
            continue
    raise StorageError(f"{_LOOKS} times in a row the newest checkpoint of {storage.url} was removed while it was read")


def _latest(storage: Storage) -> CheckpointName:
    _, name = first_choice(storage)
    if name is None:
        refuse_unfinished(storage, Index(storage), read_run(storage))
        raise CheckpointNotFoundError(
            f"there is no committed checkpoint at {storage.url}; `ckptkit ls` shows what is at another root"
        )
    return name


def _named(storage: Storage, checkpoint: str) -> OpenedCheckpoint:
    name = CheckpointName.parse(checkpoint)
    if name is not None:
        try:
            return _open(storage, name)
        except CheckpointNotFoundError:
            pass  # the next look says which ones there are
    found = choose(Survey(storage), checkpoint, rewind=True).first
    assert found is not None  # noqa: S101 - a named one is there, or was refused
    return _open(storage, found)


def _open(storage: Storage, name: CheckpointName) -> OpenedCheckpoint:
    # In this order: without COMMIT there is nothing to be read, and an attempt that never was is no corrupt one.
    documents = Documents(storage)
    if not documents.is_committed(name):
        raise CheckpointNotFoundError(f"the checkpoint {name} is not committed (any more)")
    return open_checkpoint(storage, name, documents.document(name.attempt))
