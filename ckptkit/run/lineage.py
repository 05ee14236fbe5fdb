"""Determines which checkpoints belong to the lineage of an attempt, and which a takeover left behind.

The lineage of an attempt is its own commits, its parent, the commits of the parent's attempt up to the parent, and so
on. Commits above a parent are not on it, for example late commits of a zombie, or those that a start passed over as
corrupt. Each attempt costs one read, so a caller that can stop early walks an `Ancestry`. Documents are read through
an `AttemptLookup`. Threads: any, one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ckptkit.errors import CorruptCheckpointError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.layout import CheckpointName, attempt_key


class AttemptLookup(Protocol):
    def document(self, attempt: int) -> AttemptDocument: ...


@dataclass(frozen=True)
class Segment:
    attempt: int
    last: CheckpointName | None

    def __contains__(self, name: CheckpointName) -> bool:
        return name.attempt == self.attempt and (self.last is None or name <= self.last)


@dataclass(frozen=True)
class Lineage:
    segments: tuple[Segment, ...]
    broken: CorruptCheckpointError | None = None
    broken_at: int | None = None

    def __contains__(self, name: CheckpointName) -> bool:
        return any(name in segment for segment in self.segments)


class Ancestry:
    """Reads a lineage lazily, from the newest attempt back. One thread."""

    def __init__(self, attempts: AttemptLookup, newest: int) -> None:
        self._attempts = attempts
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
        """Yield the segments, newest first, until no further one can be of ``attempt`` or a later attempt."""
        for segment in self:
            yield segment
            if segment.attempt <= attempt:  # a parent is always of a lower attempt
                return

    def whole(self) -> Lineage:
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
    return Ancestry(attempts, newest).whole()


def segment_before(document: AttemptDocument) -> Segment | None:
    """Return the next older segment after the attempt of ``document``; None if that attempt was a fresh start."""
    if document.parent is None:
        return None
    parent = CheckpointName.parse(document.parent)
    # A parent is always of a lower attempt, so the walk ends.
    if parent is None or parent.attempt >= document.attempt:
        raise CorruptCheckpointError(
            f"{attempt_key(document.attempt)} names the parent {document.parent[:80]!r}, which is not a checkpoint "
            "of an earlier attempt"
        )
    return Segment(parent.attempt, parent)
