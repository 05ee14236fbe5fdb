"""Opens an attempt of a run that lies at several homes, a root and its mirrors, and keeps them consistent.

Attempts are numbered over all homes and have the same document at each, so a name means the same checkpoint everywhere.
The order: look at all homes; choose from all; read and apply (the nearest copy first, then the copy of the same
checkpoint at the next home, then an older checkpoint); create the document at the farthest home, which fences every
other job with this home, then at the nearer ones; list all again. Guarantees: if two homes went on separately, that is
an error and no attempt is opened. A start that cannot reach a mirror does not take emptied homes for a new run.
Threads: the training thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from ckptkit.core.contents import Contents
from ckptkit.errors import StorageError
from ckptkit.format.layout import ATTEMPTS, CheckpointName
from ckptkit.run.attempt import Opened, Opening, Target, open_attempt
from ckptkit.run.homes.combined import Homes
from ckptkit.run.homes.separation import bring_up_to_date, documents_of, refuse_separate
from ckptkit.run.index import Index
from ckptkit.storage import Storage


def open_homes(homes: Sequence[Storage], away: Sequence[str], opening: Opening, target: Target) -> Opened | Contents:
    """Open the next attempt over all homes, as `ckptkit.run.attempt.open_attempt` does."""
    for near, far in combinations(homes, 2):
        refuse_separate(near, far)

    def complete(key: str) -> None:
        # A home must get the attempts that ran without it before this one: a later start compares the highest number
        # that two homes both have, and concludes that all lower ones agree.
        if key.startswith(f"{ATTEMPTS}/"):
            for near, far in combinations(homes, 2):
                bring_up_to_date(near, far, below=key)

    roots = Homes(homes, complete)
    if away:
        _refuse_lost(roots, " and ".join(away), opening)
    return open_attempt(roots, opening, target, roots.copies)


def reach(mirror: Storage) -> None:
    mirror.probe()
    mirror.list(ATTEMPTS)


def _refuse_lost(there: Storage, away: str, opening: Opening) -> None:
    """Raise StorageError if the run has a newer checkpoint than ``there``, which only the mirrors ``away`` can have."""
    index = Index(there)
    if not any(map(index.is_committed, reversed(index.names))):
        for document in documents_of(there, index.attempts):
            if document.parent is not None:
                raise StorageError(
                    f"the run at {there.url} continues from {document.parent}, which is only at the mirror "
                    f"{away}, and the mirror cannot be reached. Starting afresh would lose it. Start again "
                    "when the mirror can be reached."
                )
    elif opening.checkpoint == "latest":
        _refuse_older(there, away, index)


def _refuse_older(there: Storage, away: str, index: Index) -> None:
    """Raise StorageError if the newest start continued from a newer checkpoint than ``there``."""
    newest = next(name.attempt for name in reversed(index.names) if index.is_committed(name))
    later = sorted((number for number in index.attempts if number > newest), reverse=True)
    document = next(iter(documents_of(there, later)), None)  # that attempt looked at all before it
    if document is None or document.branch is not None:
        return
    parent = CheckpointName.parse(document.parent or "")
    if parent is not None and not index.is_committed(parent):
        raise StorageError(
            f"the run at {there.url} continued from {parent}, which is only at the mirror {away}, and the "
            "mirror cannot be reached. Continuing from an older checkpoint would set it aside. Start again when the "
            "mirror can be reached, or name the checkpoint to continue from with checkpoint=."
        )
