"""Reads the attempts' documents at the source of a copy, and chooses the one that ends the copy.

Guarantees: only reads. The chosen document stays at the source for good, unless it is damaged or deleted by hand: its
attempt has a checkpoint, or the copy makes it itself. Any single thread.
"""

from __future__ import annotations

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError, ResumeError
from ckptkit.format.documents import MAX_ATTEMPT, AttemptDocument
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.storage import Storage

_ROUNDS = 10  # looks at a source that forgets attempts while they are read


def last_attempt(source: Storage, index: Index, alone: CheckpointName | None) -> int:
    """Return the number of the attempt whose document ends the copy.

    Raises:
        CheckpointNotFoundError: If the source has no checkpoint.
        CorruptCheckpointError: If no document there can be read.
        ResumeError: If the format has no number after that of ``alone``.
    """
    if alone is None:
        readable = readable_documents(index)
        if not readable:
            if not any(index.is_committed(name) for name in index.names):
                raise CheckpointNotFoundError(f"there is no committed checkpoint at {source.url}")
            raise CorruptCheckpointError(
                f"no file below attempts/ at {source.url} can be read, so no checkpoint there can be checked"
            )
        # The source may forget any other start before this copy ends (docs/adr/0005).
        with_commit = (one for one in reversed(readable) if any(map(index.is_committed, index.names_of(one.attempt))))
        return next(with_commit, readable[-1]).attempt
    if alone.attempt == MAX_ATTEMPT:
        raise ResumeError(f"{alone} belongs to the last attempt number of the format; copy the whole run")
    return alone.attempt + 1


def settled(source: Storage, index: Index) -> Index:
    """Return ``index``, or a newer one if a start at the source has forgotten an attempt since it was made."""
    for _ in range(_ROUNDS):
        if not any(_is_gone(index, attempt) for attempt in index.attempts):
            break
        index = Index(source)
    return index


def _is_gone(index: Index, attempt: int) -> bool:
    try:
        index.document(attempt)
    except CorruptCheckpointError as error:
        return isinstance(error.__cause__, FileNotFoundError)
    return False


def readable_documents(index: Index) -> list[AttemptDocument]:
    """Return the documents of ``index`` that can be read, in order."""
    found = []
    for attempt in sorted(index.attempts):
        try:
            found.append(index.document(attempt))
        except CorruptCheckpointError:
            continue  # its checkpoints are reported as corrupt, since none can be checked
    return found
