"""The fence: whether an attempt still owns its run, asked before every write that others could suffer from.

Guarantees: an attempt is told apart by the token in its document and not by its number, so that a job whose run was
removed, moved or begun anew stops. It decides from what it reads, once; the threads are those of the callers.
"""

from __future__ import annotations

import logging

from ckptkit.checkpoint.commit import create_once
from ckptkit.checkpoint.listing import list_attempts, list_names
from ckptkit.errors import CkptKitError, CorruptCheckpointError, FormatVersionError, StaleAttemptError, StorageError
from ckptkit.format.documents import MAX_SEALED_BYTES, AttemptDocument, decode, encode
from ckptkit.format.layout import attempt_key, checkpoints_prefix
from ckptkit.run.index import Documents
from ckptkit.run.origin import read_run
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")


def check_fence(storage: Storage, attempt: AttemptDocument, *, put_back: str | None = None) -> None:
    """Make sure that ``attempt`` still owns the run: none is later, and its document is still its own.

    Args:
        storage: The run root.
        attempt: The attempt that wants to go on writing.
        put_back: The id of its run. With it, its document is created again if somebody deleted it; without the
            document, none of its commits could be read.

    Raises:
        StaleAttemptError: If a later attempt exists, or another process began the run anew.
        StorageError: If the own document is gone and may not be put back: in the middle of a save, what was written
            of that save may be gone too.
    """
    numbers = list_attempts(storage)
    highest = max(numbers, default=0)
    if highest > attempt.attempt:
        raise StaleAttemptError(
            f"attempt {highest}{_host_of(storage, highest)} took the run {storage.url} over from attempt "
            f"{attempt.attempt}. This process must stop; its last commit before the takeover stays usable. If both are "
            f'to train, give each a root of its own, such as "{storage.url}-2".'
        )
    key = attempt_key(attempt.attempt)
    try:
        there = storage.read(key, MAX_SEALED_BYTES) if attempt.attempt in numbers else None
    except FileNotFoundError:
        there = None
    if there is None:
        there = _put_back(storage, attempt, put_back)
    if not _may_be(there, attempt):
        _tell_of_replaced(storage, attempt)
        raise _begun_anew(storage, attempt)


def _may_be(data: bytes, attempt: AttemptDocument) -> bool:
    """Whether ``data`` is the document of ``attempt``, perhaps damaged: that gives the run to nobody else."""
    try:
        return decode(data, AttemptDocument, attempt_key(attempt.attempt)).token == attempt.token
    except CorruptCheckpointError:
        return True
    except FormatVersionError:
        return False


def _tell_of_replaced(storage: Storage, attempt: AttemptDocument) -> None:
    """Say how to use the own commits again, where a start put its document over the own one.

    It began from the same checkpoint then; a run that was begun anew has another one, or none.
    """
    index = Documents(storage)
    try:
        if attempt.parent is None or index.document(attempt.attempt).parent != attempt.parent:
            return
        own = list_names(storage, checkpoints_prefix(attempt.attempt))
        newest = next((name for name in reversed(own) if index.is_foreign(name)), None)
    except (CkptKitError, FileNotFoundError):
        return  # the process ends with an error in any case
    if newest is not None:
        _log.warning(
            "a start that stood still for too long replaced %s below %s. Nothing was deleted. To go on from %s, stop "
            "all jobs, and have that file hold this line again, without a line end:\n%s",
            *(attempt_key(attempt.attempt), storage.url, newest, encode(attempt).decode()),
        )


def _put_back(storage: Storage, attempt: AttemptDocument, run_id: str | None) -> bytes:
    """Create the document of ``attempt`` again, and return what is there in the end."""
    key = attempt_key(attempt.attempt)
    what = f"{key} below {storage.url} is gone, which this process made: somebody deleted the run, or a part of it"
    if run_id is None:
        raise StorageError(f"{what}. This save is given up; the next one puts the file back.")
    run = read_run(storage)
    if run is not None and run.run_id != run_id:
        raise _begun_anew(storage, attempt)  # with lower numbers, so that the own document would take it over
    _log.warning("%s. It is put back, and saves go on; earlier checkpoints may be gone.", what)
    return create_once(storage, key, encode(attempt))


def _begun_anew(storage: Storage, attempt: AttemptDocument) -> StaleAttemptError:
    return StaleAttemptError(
        f"the run {storage.url} is another process's now{_host_of(storage, attempt.attempt)}, by the documents below "
        f"attempts/: somebody removed or moved what this process trained, and began anew. This process must stop; what "
        f'it committed is where it was moved. If both are to train, give each a root of its own, as "{storage.url}-2".'
    )


def _host_of(storage: Storage, number: int) -> str:
    """Where an attempt runs, for messages, as far as its document tells."""
    key = attempt_key(number)
    try:
        return f" on {decode(storage.read(key, MAX_SEALED_BYTES), AttemptDocument, key).host}"
    except (CkptKitError, FileNotFoundError):
        return ""
