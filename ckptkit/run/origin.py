"""Where a run came from, and whether the copy that made it has ended.

Guarantees: a copy that has not ended is told from a run by what lies there, before anybody starts on it: it may hold no
checkpoint yet, and would look like a run to begin afresh. Any thread.
"""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

from ckptkit.errors import CorruptCheckpointError, ResumeError
from ckptkit.manifest import MAX_SEALED_BYTES, RunDocument, decode
from ckptkit.run.find import Index
from ckptkit.run.names import RUN, attempt_key
from ckptkit.storage import Storage


def read_run(storage: Storage) -> RunDocument | None:
    """``run.json``, or None where it is absent or corrupt: no checkpoint depends on it.

    Raises:
        FormatVersionError: If it was written by a newer format.
        StorageError: If it could not be read.
    """
    try:
        return decode(storage.read(RUN, MAX_SEALED_BYTES), RunDocument, RUN)
    except (FileNotFoundError, CorruptCheckpointError):
        return None


def is_unfinished(index: Index, run: RunDocument | None) -> bool:
    """Whether ``run`` is that of a copy whose last file is not there."""
    return run is not None and run.copied_from is not None and run.copied_from.last_attempt not in index.attempts


def refuse_unfinished(storage: Storage, index: Index, run: RunDocument | None) -> None:
    """Raise ResumeError if the run at ``storage`` is a copy that has not ended."""
    if run is None or run.copied_from is None or not is_unfinished(index, run):
        return
    raise ResumeError(
        f"{storage.url} is a copy of {run.copied_from.url} that has not ended: "
        f"{attempt_key(run.copied_from.last_attempt)}, its last file, is not there. Run the same `ckptkit copy` again, "
        "which copies the rest; or use another root."
    )


def without_credentials(url: str) -> str:
    """``url`` without user, password and query; a path stays as it is."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
