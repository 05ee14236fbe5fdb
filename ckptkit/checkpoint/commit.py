"""Creates COMMIT, which makes a folder a checkpoint, and its void form, which prevents that forever.

Guarantees: if several processes try to create one key, exactly one content wins and every caller learns which one,
even if the storage's reply was lost: in doubt, the content is read back. `remove_data` deletes no data of an
uncommitted folder before the folder is known to be void. Threads: those of the callers.
"""

from __future__ import annotations

import logging

from ckptkit.checkpoint.reading import reread_if_corrupt
from ckptkit.errors import CorruptCheckpointError, StaleAttemptError, StorageError
from ckptkit.format.document_json import decode_commit, encode
from ckptkit.format.documents import MAX_SEALED_BYTES, Commit, Void
from ckptkit.format.layout import COMMIT, CheckpointName
from ckptkit.storage import Storage

_TRIES = 3

_log = logging.getLogger("ckptkit")


def read_commit(storage: Storage, name: CheckpointName) -> Commit | Void | None:
    def read() -> Commit | Void:
        data = storage.read(name.commit_key, MAX_SEALED_BYTES)
        if len(data) > MAX_SEALED_BYTES:
            raise CorruptCheckpointError(f"{name.commit_key} is longer than {MAX_SEALED_BYTES} bytes")
        return decode_commit(data, name.commit_key)

    try:
        return reread_if_corrupt(read)
    except FileNotFoundError:
        return None


def create_once(storage: Storage, key: str, data: bytes, max_bytes: int = MAX_SEALED_BYTES) -> bytes:
    """Create ``key`` with ``data`` unless it exists, and return the content that is there afterwards."""
    for remaining in reversed(range(_TRIES)):
        try:
            storage.create(key, data)
        except FileExistsError as error:
            doubt: Exception = error
        except StorageError as error:
            doubt = error
        else:
            return data
        try:
            found = storage.read(key, max_bytes)
        except FileNotFoundError:
            found = None  # not created: it is safe to try the same content again
        except CorruptCheckpointError:
            found = b""  # created and damaged since: return content that no document parses from
        if found is not None and isinstance(doubt, FileExistsError):
            return found
        # A content after an error may not be durable yet. Only "exists" guarantees that, so create it once more.
        if remaining == 0 and isinstance(doubt, StorageError):
            raise doubt
    raise StorageError(
        f"{key} existed when this process created it and was missing when it read it, {_TRIES} times in a row"
    )


def make_durable(storage: Storage, key: str, data: bytes, max_bytes: int = MAX_SEALED_BYTES) -> None:
    """Make a file that was found to hold ``data`` survive a power loss, before anything depends on it.

    A local file system shows a name before its folder is fsynced, and the writer may have died in between. An object
    store shows a file only once it is durable.

    Raises:
        StorageError: If the file may not survive.
    """
    if not storage.is_remote:
        create_once(storage, key, data, max_bytes)  # the reply "exists" guarantees that it is durable


def publish(storage: Storage, name: CheckpointName, commit: Commit) -> None:
    """Commit the folder ``name``; on return the checkpoint exists."""
    data = encode(commit)
    found = create_once(storage, name.commit_key, data)
    if found == data:
        return
    there = decode_commit(found, name.commit_key)
    by = there.void_by if isinstance(there, Void) else there.token
    raise StaleAttemptError(
        f"{name.commit_key} was created by the holder of the token {by}: another process took this run over. "
        "Stop this one; the other continues the run."
    )


def void(storage: Storage, name: CheckpointName, token: str) -> Commit | Void:
    """Create COMMIT of ``name`` as void, so that it can never be committed; return the COMMIT that is there now."""
    found = create_once(storage, name.commit_key, encode(Void(void_by=token)))
    return decode_commit(found, name.commit_key)


def void_or_leave(storage: Storage, name: CheckpointName, token: str) -> bool:
    """Void the folder of ``name``; return whether it can never become a checkpoint."""
    try:
        return isinstance(void(storage, name, token), Void)
    except CorruptCheckpointError as error:
        _log.warning("%s; the folder stays unchanged, at %s", error, storage.url)
        return False


def remove_data(storage: Storage, name: CheckpointName) -> bool:
    """Delete everything in a void folder except the void marker; return whether there was anything."""
    keys = [key for key in keys_below(storage, name.folder) if key != name.commit_key]
    if keys and not isinstance(read_commit(storage, name), Void):
        raise ValueError(f"{name} is not void; its data must not be deleted")
    storage.delete(keys)
    return bool(keys)


def remove_checkpoint(storage: Storage, name: CheckpointName) -> None:
    """Delete a committed checkpoint: COMMIT first and durably, so that no reader takes the rest for a checkpoint."""
    storage.delete([name.commit_key])
    storage.delete([key for key in keys_below(storage, name.folder) if not key.endswith(f"/{COMMIT}")])


def keys_below(storage: Storage, folder: str) -> list[str]:
    return sorted(storage.walk(f"{folder}/"))
