"""Checks the fence: whether an attempt still owns its run, before every write that could harm another job.

Guarantees: an attempt is identified by the token in its document, not by its number, so a job stops if its run was
removed, moved or begun anew. Each check decides from one look at the storage. Threads: those of the callers.
"""

from __future__ import annotations

import logging

from ckptkit.checkpoint.commit import create_once
from ckptkit.checkpoint.listing import list_attempts, list_names
from ckptkit.checkpoint.reading import read_document
from ckptkit.errors import CkptKitError, CorruptCheckpointError, FormatVersionError, StaleAttemptError, StorageError
from ckptkit.format.document_json import decode, encode
from ckptkit.format.documents import MAX_SEALED_BYTES, AttemptDocument
from ckptkit.format.layout import attempt_key, checkpoints_prefix
from ckptkit.run.index import Documents
from ckptkit.run.origin import read_run
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")


def check_fence(storage: Storage, attempt: AttemptDocument, *, put_back: str | None = None) -> bool:
    """Check that ``attempt`` still owns the run: no later attempt exists, and its document is unchanged."""
    numbers = list_attempts(storage)
    highest = max(numbers, default=0)
    if highest > attempt.attempt:
        raise StaleAttemptError(
            f"attempt {highest}{_host_of(storage, highest)} took over the run {storage.url} from attempt "
            f"{attempt.attempt}. This process must stop; its last commit before the takeover stays usable. If both are "
            f'to train, give each its own root, such as "{storage.url}-2".'
        )
    key = attempt_key(attempt.attempt)
    try:
        there = storage.read(key, MAX_SEALED_BYTES) if attempt.attempt in numbers else None
    except FileNotFoundError:
        there = None
    is_gone = there is None
    if there is None:
        there = _put_back(storage, attempt, put_back)
    if not _may_be(there, attempt):
        _tell_of_replaced(storage, attempt)
        raise _begun_anew(storage, attempt)
    return is_gone


def _may_be(data: bytes, attempt: AttemptDocument) -> bool:
    """Return whether ``data`` is the document of ``attempt``, or damaged, and so gives the run to no other one."""
    try:
        return decode(data, AttemptDocument, attempt_key(attempt.attempt)).token == attempt.token
    except CorruptCheckpointError:
        return True
    except FormatVersionError:
        return False


def _tell_of_replaced(storage: Storage, attempt: AttemptDocument) -> None:
    """Log how to recover the attempt's commits, if another start replaced its document.

    Such a start has the same parent. A run that was begun anew has another parent, or none.
    """
    index = Documents(storage)
    try:
        if attempt.parent is None or index.document(attempt.attempt).parent != attempt.parent:
            return
        own = list_names(storage, checkpoints_prefix(attempt.attempt))
        newest = next((name for name in reversed(own) if index.is_foreign(name)), None)
    except (CkptKitError, FileNotFoundError):
        return  # the caller raises an error in any case
    if newest is not None:
        _log.warning(
            "a start that was stalled for too long replaced %s below %s. Nothing was deleted. To continue from %s, "
            "stop all jobs, and write this line to that file again, without a line end:\n%s",
            *(attempt_key(attempt.attempt), storage.url, newest, encode(attempt).decode()),
        )


def _put_back(storage: Storage, attempt: AttemptDocument, run_id: str | None) -> bytes:
    """Create the document of ``attempt`` again, and return the content that is there afterwards."""
    key = attempt_key(attempt.attempt)
    what = f"{key} below {storage.url}, which this process made, is missing: the run, or a part of it, was deleted"
    if run_id is None:
        raise StorageError(f"{what}. This save was abandoned; the next one restores the file.")
    run = read_run(storage)
    if run is not None and run.run_id != run_id:
        raise _begun_anew(storage, attempt)  # the new run has lower numbers: this document would take it over
    _log.warning("%s. The file is restored, and saves continue; earlier checkpoints may be missing.", what)
    return create_once(storage, key, encode(attempt))


def _begun_anew(storage: Storage, attempt: AttemptDocument) -> StaleAttemptError:
    return StaleAttemptError(
        f"the run {storage.url} now belongs to another process{_host_of(storage, attempt.attempt)}, according to the "
        "documents below attempts/: the files of this process were removed or moved, and a new run began. This process "
        "must stop; its checkpoints are where they were moved. If both are to train, give each its own root, such as "
        f'"{storage.url}-2".'
    )


def _host_of(storage: Storage, number: int) -> str:
    key = attempt_key(number)
    try:
        return f" on {read_document(storage, key, AttemptDocument).host}"
    except (CkptKitError, FileNotFoundError):
        return ""
