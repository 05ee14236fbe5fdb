"""Why a checkpoint is still there, as far as names and attempts tell.

Guarantees: what is said follows from the protocol (``docs/format.md``, Retention): the two newest commits of the
lineage always stay, what is off the lineage goes by hand only. Policies lie nowhere on storage, so of everything else
no more is known than that the run's own policy has left it. Any single thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Literal

from ckptkit.format.layout import CheckpointName
from ckptkit.run.lineage import Segment
from ckptkit.run.resolve import Candidates, Head, Look, newest_head

Reason = Literal["latest", "newest-two", "policy", "off-lineage", "unknown"]


@dataclass(frozen=True)
class Kept:
    """Why one checkpoint is there.

    Attributes:
        reason: ``latest`` and ``newest-two`` stay whatever the policy says; ``policy`` is the run's own;
            ``off-lineage`` is of a branch that was given up; ``unknown`` where an attempt's document cannot be read.
        parent_of: The attempt that went on from it, where that is on the lineage.
    """

    reason: Reason
    parent_of: int | None = None


def why_kept(look: Look, names: Sequence[CheckpointName]) -> Mapping[CheckpointName, Kept]:
    """Why each of ``names`` is there; costs a read for each attempt of the lineage that is among them.

    Raises:
        StorageError: If the storage failed.
    """
    head, _ = newest_head(look)
    if head is None:
        return {name: Kept("unknown") for name in names}
    segments = _segments(head, min((name.attempt for name in names), default=0))
    newest = {*islice((name for name in Candidates(look, head.lineage) if not look.is_foreign(name)), 2)}
    parents = {older.last: newer.attempt for newer, older in pairwise(segments)}

    def why(name: CheckpointName) -> Kept:
        if name == head.first:
            return Kept("latest", parents.get(name))
        if name in newest:
            return Kept("newest-two", parents.get(name))
        if any(name in segment for segment in segments):
            return Kept("policy", parents.get(name))
        is_beyond = head.lineage.broken_at is not None and name.attempt <= head.lineage.broken_at
        return Kept("unknown" if is_beyond else "off-lineage")

    return {name: why(name) for name in names}


def _segments(head: Head, lowest: int) -> list[Segment]:
    """The lineage from the newest attempt on, as far as attempts from ``lowest`` on are concerned."""
    found = []
    for segment in head.lineage:
        found.append(segment)
        if segment.attempt <= lowest:
            break
    return found
