"""Removes what dead attempts left: unfinished writes, the data of saves that never committed, frozen shards.

Guarantees: nothing is deleted before its folder is known to be void; a COMMIT that lands meanwhile wins, and its folder
and its attempt's frozen shards stay, as do those of an attempt of which not even a folder is there: it may be on a disk
that is not mounted; what belongs to the own or a higher attempt, or cannot be told, is not touched; events stay for
good. Committed folders cost no read. Training thread, once per start.
"""

from __future__ import annotations

import logging

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.manifest import AttemptDocument, Void
from ckptkit.run.attempt import check_fence
from ckptkit.run.commit import keys_below, remove_data, void
from ckptkit.run.find import Documents, list_names
from ckptkit.run.names import (
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    FROZEN,
    CheckpointName,
    attempt_of,
    checkpoints_prefix,
    frozen_folder,
    parse_frozen,
)
from ckptkit.run.survey import Folders
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")


def sweep(storage: Storage, attempt: AttemptDocument) -> list[CheckpointName]:
    """Void, then empty, the uncommitted folders of earlier attempts; returns what was emptied.

    Args:
        storage: The run root.
        attempt: The attempt that owns the run.

    Raises:
        StaleAttemptError: If a later attempt exists; nothing was deleted.
        StorageError: If the storage failed; what is left is for the next sweep.
    """
    folders = Folders(storage)  # many pages: before the fence check, so that what follows follows soon
    check_fence(storage, attempt)
    _clear_unfinished(storage, attempt)
    earlier = [name for name in folders.names if name.attempt < attempt.attempt]
    emptied = [name for name in earlier if _is_dead(storage, folders, name, attempt) and remove_data(storage, name)]
    living = {name.attempt for name in earlier if folders.is_committed(name)}
    found = {number for folder in storage.list(FROZEN).folders if (number := parse_frozen(folder)) is not None}
    for number in sorted(found - living):
        if number < attempt.attempt and folders.shows_end_of(number):
            remove_frozen(storage, number)
    return emptied


def remove_frozen(storage: Storage, attempt: int) -> None:
    """Delete the frozen shards of ``attempt``, a dead one, if it has no commit left to refer to them."""
    # A new look: a COMMIT that came before its void, or after the look before, is in no other answer.
    folders = Folders(storage, attempt)
    if any(map(folders.is_committed, folders.names)):
        return
    # And another kind of look: what is deleted here, a commit that both looks missed could not do without.
    index = Documents(storage)
    if not any(map(index.is_committed, list_names(storage, checkpoints_prefix(attempt)))):
        storage.delete(keys_below(storage, frozen_folder(attempt)))


def _clear_unfinished(storage: Storage, attempt: AttemptDocument) -> None:
    def is_dead(key: str) -> bool:
        writer = attempt_of(key)
        return writer is not None and writer < attempt.attempt

    try:
        # A segment of events is one small put, of which an object store keeps no half: no request is spent on it there.
        for folder in (ATTEMPTS, CHECKPOINTS, FROZEN, *(() if storage.is_remote else (EVENTS,))):
            storage.clear_unfinished(f"{folder}/", is_dead)
    except StorageError as error:
        # It may need rights of its own, and what is left costs space and nothing else: the rest must not wait for it.
        _log.warning("unfinished writes of earlier attempts could not be cleared, a later start will: %s", error)


def _is_dead(storage: Storage, folders: Folders, name: CheckpointName, attempt: AttemptDocument) -> bool:
    """Whether ``name`` may be void and have data, after voiding it if it was uncommitted."""
    if not folders.is_uncommitted(name):
        return folders.may_be_void_with_data(name) and not folders.is_committed(name)
    try:
        return isinstance(void(storage, name, attempt.token), Void)
    except CorruptCheckpointError:
        return False
