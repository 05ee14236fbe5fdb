"""Opens an attempt of a run that lies on a local root and its mirror, and keeps the two consistent.

Attempts are numbered over both roots and have the same document on both, so a name means the same checkpoint on each.
The order: look at both roots; choose from both; read and apply (the copy at the local root first, then the copy of the
same checkpoint at the mirror, then an older checkpoint); create the document at the mirror, which fences every other
job with this mirror, then at the local root; list both again. Guarantees: if the two roots went on separately, that is
an error and no attempt is opened. A start that cannot reach the mirror does not take an emptied local root for a new
run. Threads: the training thread only.
"""

from __future__ import annotations

from ckptkit.errors import StorageError
from ckptkit.format.layout import ATTEMPTS, CheckpointName
from ckptkit.run.attempt import Opened, Opening, Target, open_attempt
from ckptkit.run.homes.combined import TwoRoots
from ckptkit.run.homes.separation import bring_up_to_date, documents_of, refuse_separate
from ckptkit.run.index import Index
from ckptkit.storage import Storage


def open_mirrored(local: Storage, mirror: Storage, opening: Opening, target: Target) -> Opened:
    """Open the next attempt over both roots, as `ckptkit.run.attempt.open_attempt` does.

    Raises:
        ResumeError: If the two roots went on separately.
        StorageError: If one of them failed. Call `reach` first to find out whether the mirror can be used.
    """
    refuse_separate(local, mirror)

    def complete_mirror(key: str) -> None:
        # The mirror must get the attempts that ran without it before this one: a later start compares the highest
        # number that both roots have, and concludes that all lower ones agree.
        if key.startswith(f"{ATTEMPTS}/"):
            bring_up_to_date(local, mirror, below=key)

    roots = TwoRoots(local, mirror, complete_mirror)
    return open_attempt(roots, opening, target, roots.copies)


def reach(mirror: Storage) -> None:
    """Check that the mirror can be used.

    Raises:
        StorageError: If it cannot.
    """
    mirror.probe()
    mirror.list(ATTEMPTS)


def open_alone(local: Storage, mirror: Storage, opening: Opening, target: Target) -> Opened:
    """Open the next attempt at the local root only, because the mirror cannot be reached.

    Raises:
        StorageError: If the run has checkpoints, but none at the local root; or if the newest start continued from a
            checkpoint that only the mirror has, and committed nothing.
        CkptKitError: As `ckptkit.run.attempt.open_attempt`.
    """
    index = Index(local)
    if not any(map(index.is_committed, reversed(index.names))):
        for document in documents_of(local, index.attempts):
            if document.parent is not None:
                raise StorageError(
                    f"the run at {local.url} continues from {document.parent}, which is only at the mirror "
                    f"{mirror.url}, and the mirror cannot be reached. Starting afresh would lose it. Start again "
                    "when the mirror can be reached."
                )
    elif opening.checkpoint == "latest":
        _refuse_older(local, mirror, index)
    return open_attempt(local, opening, target)


def _refuse_older(local: Storage, mirror: Storage, index: Index) -> None:
    """Raise StorageError if the newest start continued from a newer checkpoint than the local root has.

    Continuing from an older one would discard that checkpoint, and no attempt number would show it afterwards.
    """
    newest = next(name.attempt for name in reversed(index.names) if index.is_committed(name))
    later = sorted((number for number in index.attempts if number > newest), reverse=True)
    document = next(iter(documents_of(local, later)), None)  # that attempt looked at all before it
    if document is None or document.branch is not None:
        return
    parent = CheckpointName.parse(document.parent or "")
    if parent is not None and not index.is_committed(parent):
        raise StorageError(
            f"the run at {local.url} continued from {parent}, which is only at the mirror {mirror.url}, and the "
            "mirror cannot be reached. Continuing from an older checkpoint would set it aside. Start again when the "
            "mirror can be reached, or name the checkpoint to continue from with checkpoint=."
        )
