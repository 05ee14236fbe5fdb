"""Tells a mistyped root from a run that has committed nothing yet.

Guarantees: reads only names, in the root and directly below it. Any thread may call it.
"""

from __future__ import annotations

import os

from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.layout import ATTEMPTS, CHECKPOINTS, EVENTS, FROZEN, RUN
from ckptkit.storage import Storage
from ckptkit.storage.lease import LEASE, PROBE
from ckptkit.storage.local import LocalStorage

_A_RUNS = {RUN, ATTEMPTS, CHECKPOINTS, FROZEN, EVENTS, LEASE, PROBE}
_MOST_LOOKED_AT = 30  # each folder costs a request
_MOST_NAMED = 3


def refuse_no_run(storage: Storage) -> None:
    """Raise if ``storage`` cannot be a run; call it if no checkpoint was found.

    A run without a commit and an empty root are fine. A remote root without a file counts as empty, because object
    stores have no folders that could be missing.

    Raises:
        CheckpointNotFoundError: If the folder does not exist, or holds other files; names the runs directly below it.
        StorageError: If the storage failed.
    """
    why = _why(storage)
    if why is not None:
        raise CheckpointNotFoundError(why)


def _why(storage: Storage) -> str | None:
    if isinstance(storage, LocalStorage) and not os.path.isdir(storage.url):
        return f"{storage.url} does not exist, so there is no run. Check for a typo, or for a disk that is not mounted"
    top = storage.list("")
    names = {name for name in (*top.folders, *top.files) if not name.startswith(".")}
    if not names or names & _A_RUNS:
        return None
    below = [name for name in sorted(top.folders)[:_MOST_LOOKED_AT] if RUN in storage.list(name).files][:_MOST_NAMED]
    if below:
        roots = ", ".join(f"{storage.url.rstrip('/')}/{name}" for name in below)
        return f"{storage.url} is not a run, but there are runs below it. Give the root of one, such as {roots}"
    return f"{storage.url} holds files ({', '.join(sorted(names)[:_MOST_NAMED])}, ...), but no run. Check for a typo"
