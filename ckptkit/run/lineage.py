"""Which checkpoints belong to the history of an attempt, and which were left behind by a takeover.

An attempt's lineage is its own commits, its parent, the parent's attempt up to the parent, and so on. A commit
above a parent (a zombie that was late, saves below a corrupt latest) is not on it. Pure functions over an
`AttemptLookup`, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ckptkit.errors import CorruptCheckpointError
from ckptkit.manifest import AttemptDocument
from ckptkit.run.names import CheckpointName, attempt_key


class AttemptLookup(Protocol):
    """Gives attempt documents by number."""

    def document(self, attempt: int) -> AttemptDocument:
        """The document of ``attempt``; CorruptCheckpointError if it is missing or cannot be read."""
        ...


@dataclass(frozen=True)
class Segment:
    """A stretch of one attempt: all of it, or up to and including ``last``."""

    attempt: int
    last: CheckpointName | None

    def __contains__(self, name: CheckpointName) -> bool:
        return name.attempt == self.attempt and (self.last is None or name <= self.last)


@dataclass(frozen=True)
class Lineage:
    """Segments from the newest attempt back to a fresh start.

    Attributes:
        segments: Newest first; only of attempts whose document can be read, since without it nothing that an
            attempt wrote can be checked.
        branches: Checkpoints that the user chose by name on the way.
        broken: Why it could not be followed further, or None where it ends at a fresh start.
        broken_at: The attempt whose document cannot be read, or None.
    """

    segments: tuple[Segment, ...]
    branches: frozenset[str]
    broken: CorruptCheckpointError | None = None
    broken_at: int | None = None

    def __contains__(self, name: CheckpointName) -> bool:
        return any(name in segment for segment in self.segments)


def trace(attempts: AttemptLookup, newest: int) -> Lineage:
    """Follow the parents from ``newest`` back."""
    segments: list[Segment] = []
    branches: set[str] = set()
    step: Segment | None = Segment(newest, None)
    try:
        while step is not None:
            segments.append(step)
            document = attempts.document(step.attempt)
            if document.branch is not None:
                branches.add(document.branch)
            step = _before(document)
    except CorruptCheckpointError as error:
        return Lineage(tuple(segments[:-1]), frozenset(branches), error, segments[-1].attempt)
    return Lineage(tuple(segments), frozenset(branches))


def _before(document: AttemptDocument) -> Segment | None:
    if document.parent is None:
        return None
    parent = CheckpointName.parse(document.parent)
    # Parents only ever point to lower attempts, which is also why the walk ends.
    if parent is None or parent.attempt >= document.attempt:
        raise CorruptCheckpointError(
            f"{attempt_key(document.attempt)} names the parent {document.parent[:80]!r}, "
            "which is no checkpoint of an earlier attempt"
        )
    return Segment(parent.attempt, parent)
