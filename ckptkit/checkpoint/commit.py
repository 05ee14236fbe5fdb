"""Lists a run, reads its small files, and creates COMMIT, which makes a folder a checkpoint, or its void form.

If several processes create one key, exactly one content wins and every caller learns which one, even if the storage's
reply was lost. A folder that is not committed is void before its data are deleted. A failed listing is an error, never
an empty run.
"""

from __future__ import annotations

import logging

from ckptkit.checkpoint.reread import reread_if_corrupt
from ckptkit.errors import CorruptCheckpointError, StaleAttemptError, StorageError
from ckptkit.format.documents import MAX_SEALED_BYTES, Commit, Model, Void, decode, decode_commit, encode
from ckptkit.format.layout import ATTEMPTS, CHECKPOINTS, COMMIT, CheckpointName, parse_attempt
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")


def read_document(storage: Storage, key: str, model: type[Model]) -> Model:
    return reread_if_corrupt(lambda: decode(storage.read(key, MAX_SEALED_BYTES), model, key))


def list_attempts(storage: Storage) -> frozenset[int]:
    files = storage.list(ATTEMPTS).files
    return frozenset(number for file in files if (number := parse_attempt(file)) is not None)


def list_names(storage: Storage, prefix: str = "") -> tuple[CheckpointName, ...]:
    listing = storage.list(CHECKPOINTS, prefix)
    parsed = {CheckpointName.parse(name) for name in (*listing.folders, *listing.files)}
    return tuple(sorted(name for name in parsed if name is not None))


_TRIES = 3


def read_commit(storage: Storage, name: CheckpointName) -> Commit | Void | None:
    key = name.commit_key
    try:
        return reread_if_corrupt(lambda: decode_commit(storage.read(key, MAX_SEALED_BYTES), key))
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
            content = storage.read(key, max_bytes)
        except FileNotFoundError:
            content = None  # not created: it is safe to try the same content again
        except CorruptCheckpointError:
            content = b""  # created and damaged since: return content that no document parses from
        if content is not None and isinstance(doubt, FileExistsError):
            return content
        # A content after an error may not be durable yet. Only "exists" guarantees that, so create it once more.
        if remaining == 0 and isinstance(doubt, StorageError):
            raise doubt
    raise StorageError(
        f"{key} existed when this process created it and was missing when it read it, {_TRIES} times in a row"
    )


def make_durable(storage: Storage, key: str, data: bytes, max_bytes: int = MAX_SEALED_BYTES) -> None:
    """Make a file that was found to hold ``data`` survive a power loss, before anything depends on it.

    A local file system shows a name before its folder is fsynced; an object store shows a file once it is durable.
    """
    if not storage.is_remote:
        create_once(storage, key, data, max_bytes)  # the reply "exists" guarantees that it is durable


def publish(storage: Storage, name: CheckpointName, commit: Commit) -> None:
    data = encode(commit)
    content = create_once(storage, name.commit_key, data)
    if content == data:
        return
    there = decode_commit(content, name.commit_key)
    by = there.void_by if isinstance(there, Void) else there.token
    raise StaleAttemptError(
        f"{name.commit_key} was created by the holder of the token {by}: another process took this run over. "
        "Stop this one; the other continues the run."
    )


def void(storage: Storage, name: CheckpointName, token: str) -> Commit | Void:
    """Create COMMIT of ``name`` as void, so that it can never be committed; return the COMMIT that is there now."""
    content = create_once(storage, name.commit_key, encode(Void(void_by=token)))
    return decode_commit(content, name.commit_key)


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
