"""Tells whose a run is: whether an attempt still owns it, and whether it is an unfinished copy or lost its files.

An attempt is identified by the token in its document, so a job stops if its run was moved, or removed and begun anew;
it puts back a document of its own that is missing. Any thread.
"""

from __future__ import annotations

import contextlib
import logging
import os

from ckptkit.checkpoint.commit import create_once, list_attempts, list_names, read_document
from ckptkit.core.text import listed, some
from ckptkit.errors import (
    CheckpointNotFoundError,
    CkptKitError,
    CorruptCheckpointError,
    FormatVersionError,
    ResumeError,
    StaleAttemptError,
    StorageError,
)
from ckptkit.format.documents import MAX_SEALED_BYTES, AttemptDocument, Model, RunDocument, decode, encode
from ckptkit.format.layout import (
    ATTEMPTS,
    CHECKPOINTS,
    EVENTS,
    FROZEN,
    RUN,
    attempt_key,
    checkpoints_prefix,
    frozen_folder,
    parse_frozen,
)
from ckptkit.run.index import Documents, Index
from ckptkit.storage import LocalStorage, Storage
from ckptkit.storage.lease import LEASE, PROBE

_OF_A_RUN = {RUN, ATTEMPTS, CHECKPOINTS, FROZEN, EVENTS, LEASE, PROBE}
_MOST_LISTED = 30  # each folder costs a request


def read_if_intact(storage: Storage, key: str, model: type[Model]) -> Model | None:
    """Read a document; return None if it is absent or corrupt."""
    try:
        return read_document(storage, key, model)
    except (FileNotFoundError, CorruptCheckpointError):
        return None


def read_attempt(storage: Storage, number: int) -> AttemptDocument | None:
    document = read_if_intact(storage, attempt_key(number), AttemptDocument)
    return document if document is not None and document.attempt == number else None


def read_run(storage: Storage) -> RunDocument | None:
    """Read ``run.json``, on which no checkpoint depends; return None if it is absent or corrupt."""
    return read_if_intact(storage, RUN, RunDocument)


def refuse_no_run(storage: Storage) -> None:
    """Raise CheckpointNotFoundError if ``storage`` cannot be a run; call it if no checkpoint was found.

    A run without a commit and an empty root are fine. A remote root without a file counts as empty, because object
    stores have no folders that could be missing.
    """
    url = storage.url
    if isinstance(storage, LocalStorage) and not os.path.isdir(url):
        raise CheckpointNotFoundError(
            f"{url} does not exist, so there is no run. Check for a typo, or for a disk that is not mounted"
        )
    top = storage.list("")
    names = {name for name in (*top.folders, *top.files) if not name.startswith(".")}
    if not names or names & _OF_A_RUN:
        return
    runs = [name for name in sorted(top.folders)[:_MOST_LISTED] if RUN in storage.list(name).files]
    if runs:
        roots = listed([f"{url.rstrip('/')}/{name}" for name in runs])
        raise CheckpointNotFoundError(f"{url} is not a run, but there are runs below it. Give the root of one:{roots}")
    raise CheckpointNotFoundError(f"{url} holds files ({some(sorted(names), 3)}), but no run. Check for a typo")


def no_checkpoint(storage: Storage) -> CheckpointNotFoundError:
    """Return the error for a run without a checkpoint; raise what `refuse_no_run` raises."""
    refuse_no_run(storage)
    return CheckpointNotFoundError(f"there is no committed checkpoint at {storage.url}")


def refuse_unfinished(storage: Storage, index: Index, run: RunDocument | None) -> None:
    """Raise ResumeError if ``run``, read from ``storage``, is a copy or an import whose last file is missing."""
    copied = run.copied_from if run is not None else None
    if copied is None or copied.last_attempt in index.attempts:
        return
    what, way_on = "a copy", "Run the same `ckptkit copy` again to copy the rest"
    if copied.run_id is None and copied.url.endswith((".ckpt", ".safetensors")):
        what, way_on = "an import", f"Delete {storage.url} and run the same `ckptkit import` again"
    raise ResumeError(
        f"{storage.url} is {what} of {copied.url} that has not ended: its last file, "
        f"{attempt_key(copied.last_attempt)}, is missing. {way_on}, or use another root."
    )


def refuse_emptied(storage: Storage, run: RunDocument | None) -> None:
    """Raise CorruptCheckpointError if the run has lost its checkpoints; call this only if it has none."""
    folders = {name.attempt: str(name) for name in list_names(storage)}
    frozen = {number for folder in storage.list(FROZEN).folders if (number := parse_frozen(folder)) is not None}
    known = list_attempts(storage)  # after the files: all of them have one if nothing is lost
    left = sorted({*(folders[attempt] for attempt in folders.keys() - known), *map(frozen_folder, frozen - known)})
    if left:
        raise CorruptCheckpointError(
            f"{storage.url} has files of {some(left)}, but no checkpoint, nor the documents of these attempts below "
            f"{ATTEMPTS}/: its documents are lost, or on a disk that is not there. Starting afresh would remove these "
            "files. Mount the disk, restore the run (`ckptkit copy BACKUP ROOT`), or start under another root"
        )
    if run is not None and run.copied_from is not None:
        raise CorruptCheckpointError(
            f"{storage.url} came from {run.copied_from.url} with at least one checkpoint, but holds none now. If "
            f"{CHECKPOINTS}/ is on a separate disk, mount it; otherwise copy or import the run again, to another "
            "root."
        )


_log = logging.getLogger("ckptkit")


def check_fence(storage: Storage, attempt: AttemptDocument, *, put_back: str | None = None) -> bool:
    """Check that ``attempt`` still owns the run: no later attempt exists, and its document is unchanged.

    Returns:
        Whether its document was missing, and was put back.
    """
    numbers = list_attempts(storage)
    highest = max(numbers, default=0)
    if highest > attempt.attempt:
        raise StaleAttemptError(
            f"attempt {highest}{_host_of(storage, highest)} took over the run {storage.url} from attempt "
            f"{attempt.attempt}. This process must stop; its last commit before the takeover stays usable. If both are "
            f'to train, give each its own root, such as "{storage.url}-2".'
        )
    key = attempt_key(attempt.attempt)
    there: bytes | None = None
    with contextlib.suppress(FileNotFoundError):
        there = storage.read(key, MAX_SEALED_BYTES) if attempt.attempt in numbers else None
    is_gone = there is None
    if not _may_be(_put_back(storage, attempt, put_back) if there is None else there, attempt):
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
    """Log how to recover the attempt's commits, if another start, which has the same parent, replaced its document."""
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
        f"the run {storage.url} now belongs to another process{_host_of(storage, attempt.attempt)}: the files of this "
        "one were removed or moved, and a new run began. This process must stop; its checkpoints are where they were "
        f'moved. If both are to train, give each its own root, such as "{storage.url}-2".'
    )


def _host_of(storage: Storage, number: int) -> str:
    key = attempt_key(number)
    try:
        return f" on {read_document(storage, key, AttemptDocument).host}"
    except (CkptKitError, FileNotFoundError):
        return ""
