"""Reads where a run came from, and detects a copy or an import that has not ended.

Guarantees: a copy or import that has not ended is detected from the files at the root, before a training starts there.
It may hold no checkpoint yet, and would otherwise look like a new run. Threads: any.
"""

from __future__ import annotations

from ckptkit.checkpoint.listing import list_attempts, list_names
from ckptkit.checkpoint.reading import read_document
from ckptkit.core.text import some
from ckptkit.errors import CorruptCheckpointError, ResumeError
from ckptkit.format.documents import RunDocument
from ckptkit.format.layout import ATTEMPTS, CHECKPOINTS, FROZEN, RUN, attempt_key, frozen_folder, parse_frozen
from ckptkit.run.index import Index
from ckptkit.storage import Storage


def read_run(storage: Storage) -> RunDocument | None:
    """Read ``run.json``; return None if it is absent or corrupt, since no checkpoint depends on it."""
    try:
        return read_document(storage, RUN, RunDocument)
    except (FileNotFoundError, CorruptCheckpointError):
        return None


def refuse_unfinished(storage: Storage, index: Index, run: RunDocument | None) -> None:
    """Raise ResumeError if ``run``, read from ``storage``, is a copy or an import whose last file is missing."""
    if run is None or run.copied_from is None or run.copied_from.last_attempt in index.attempts:
        return
    if run.copied_from.run_id is None and run.copied_from.url.endswith((".ckpt", ".safetensors")):
        raise ResumeError(
            f"the import of {run.copied_from.url} into {storage.url} has not ended: its last file, "
            f"{attempt_key(run.copied_from.last_attempt)}, is missing. Delete {storage.url} and run the same "
            "`ckptkit import` again, or use another root."
        )
    raise ResumeError(
        f"{storage.url} is a copy of {run.copied_from.url} that has not ended: its last file, "
        f"{attempt_key(run.copied_from.last_attempt)}, is missing. Run the same `ckptkit copy` again to copy the "
        "rest, or use another root."
    )


def refuse_emptied(storage: Storage, run: RunDocument | None) -> None:
    """Raise CorruptCheckpointError if the run has lost its checkpoints; call this only if it has none."""
    folders = {name.attempt: str(name) for name in list_names(storage)}
    frozen = {number for one in storage.list(FROZEN).folders if (number := parse_frozen(one)) is not None}
    known = list_attempts(storage)  # after the files: all of them have one if nothing is lost
    left = sorted({*(folders[one] for one in folders.keys() - known), *map(frozen_folder, frozen - known)})
    if left:
        raise CorruptCheckpointError(
            f"{storage.url} has files of {some(left)}, but no checkpoint, nor the documents of these attempts below "
            f"{ATTEMPTS}/: its documents are lost, or on a disk that is not there. Starting afresh would remove these "
            "files. Mount the disk, restore the run from a copy (`ckptkit copy BACKUP ROOT`), or start under another "
            "root"
        )
    if run is not None and run.copied_from is not None:
        raise CorruptCheckpointError(
            f"{storage.url} came from {run.copied_from.url} with at least one checkpoint, but holds none now. If "
            f"{CHECKPOINTS}/ is on a separate disk, mount it; otherwise copy or import the run again, to another "
            "root."
        )
