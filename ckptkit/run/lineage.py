"""Which checkpoints belong to the history of an attempt, and which were left behind by a takeover.

An attempt's lineage is its own commits, its parent, the parent's attempt up to the parent, and so on. A commit
above a parent (a zombie that was late, saves below a corrupt latest) is not on it. A lineage of a thousand attempts
costs a read each, so who may stop early walks an `Ancestry`. Over an `AttemptLookup`; any single thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.layout import CheckpointName, attempt_key


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
        broken: Why it could not be followed further, or None where it ends at a fresh start.
        broken_at: The attempt whose document cannot be read, or None.
    """

    segments: tuple[Segment, ...]
    broken: CorruptCheckpointError | None = None
    broken_at: int | None = None

    def __contains__(self, name: CheckpointName) -> bool:
        return any(name in segment for segment in self.segments)


class Ancestry:
    """A lineage that is read from the newest attempt on, only as far as it is looked at. One thread.

    Iterating gives its segments newest first, from the beginning each time; no document is read twice.

    Args:
        attempts: Gives the documents.
        newest: Where to begin.

    Attributes:
        newest: The attempt that it begins with.
        broken: As that of `Lineage`, once the last segment was asked for.
        broken_at: Likewise.
    """

    def __init__(self, attempts: AttemptLookup, newest: int) -> None:
        self._attempts = attempts
        self.newest = newest
        self._next: Segment | None = Segment(newest, None)
        self._segments: list[Segment] = []
        self.broken: CorruptCheckpointError | None = None
        self.broken_at: int | None = None

    def __iter__(self) -> Iterator[Segment]:
        at = 0
        while at < len(self._segments) or self._go_back():
            yield self._segments[at]
            at += 1

    def down_to(self, attempt: int) -> Iterator[Segment]:
        """Its segments, newest first, as far as there may be any of ``attempt`` or a later one."""
        for segment in self:
            yield segment
            if segment.attempt <= attempt:  # parents only ever point to lower attempts
                return

    def whole(self) -> Lineage:
        """All of it, read to the end."""
        segments = tuple(self)
        return Lineage(segments, self.broken, self.broken_at)

    def _go_back(self) -> bool:
        step = self._next
        if step is None:
            return False
        try:
            document = self._attempts.document(step.attempt)
            before = segment_before(document)
        except CorruptCheckpointError as error:
            self._next, self.broken, self.broken_at = None, error, step.attempt
            return False
        self._segments.append(step)
        self._next = before
        return True


def trace(attempts: AttemptLookup, newest: int) -> Lineage:
    """Follow the parents from ``newest`` back to the end."""
    return Ancestry(attempts, newest).whole()


def segment_before(document: AttemptDocument) -> Segment | None:
    """Where the lineage goes on before ``document``'s attempt; None where that was a fresh start.

    Raises:
        CorruptCheckpointError: If its parent cannot be one.
    """
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
