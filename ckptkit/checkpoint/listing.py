"""Lists a run: the numbers of its attempts and the names of its checkpoint folders.

Guarantees: a failed listing is an error and never an empty run. Threads: those of the callers.
"""

from __future__ import annotations

from ckptkit.format.layout import ATTEMPTS, CHECKPOINTS, CheckpointName, parse_attempt
from ckptkit.storage import Storage


def list_attempts(storage: Storage) -> frozenset[int]:
    files = storage.list(ATTEMPTS).files
    return frozenset(number for file in files if (number := parse_attempt(file)) is not None)


def list_names(storage: Storage, prefix: str = "") -> tuple[CheckpointName, ...]:
    """Return the checkpoint folders whose names begin with ``prefix``, committed or not, in order."""
    listing = storage.list(CHECKPOINTS, prefix)
    parsed = {CheckpointName.parse(name) for name in (*listing.folders, *listing.files)}
    return tuple(sorted(name for name in parsed if name is not None))
