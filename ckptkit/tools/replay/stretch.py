"""Chooses the checkpoints of a run between which it is trained again.

Guarantees: the last one descends from the first, and no checkpoint in between is left out: of one micro-step there may
be several, such as one with metrics. Reads and never writes. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Lineage, Segment, Survey
from ckptkit.run.resolve import Candidates, choose, open_wanted
from ckptkit.storage import Storage


@dataclass(frozen=True)
class Stretch:
    """Holds the checkpoints, opened.

    Attributes:
        begin: Where training begins again.
        ends: What is compared, in order; the last one ends the stretch.
    """

    begin: OpenedCheckpoint
    ends: tuple[OpenedCheckpoint, ...]


def stretch_of(storage: Storage, begin: str | None, end: str) -> Stretch:
    """Open the checkpoints from ``begin`` to ``end``.

    Args:
        storage: The run root.
        begin: Name of a checkpoint; None for the one before ``end``.
        end: Name of a checkpoint, or ``"latest"``.

    Raises:
        CheckpointNotFoundError: If one of the two does not exist, ``end`` does not descend from ``begin``, or nothing
            comes before it.
        CorruptCheckpointError: If a document is missing or altered; names it.
        StorageError: If the storage failed.
    """
    survey = Survey(storage)
    last = choose(survey, end, rewind=end != "latest").first
    if last is None:
        raise CheckpointNotFoundError(f"there is no committed checkpoint at {storage.url}")
    names = [*Candidates(survey, _back_from(survey, last))]  # newest first
    earlier = [one for one in names if _moment(one) < _moment(last)]
    if begin is None and not earlier:
        raise CheckpointNotFoundError(
            f"before {last}, its training has no checkpoint at {storage.url}: there is nothing to begin at. Keep more "
            "of them, as with keep=ckptkit.KeepLatest(5)"
        )
    first = earlier[0] if begin is None else CheckpointName.parse(begin)
    if first is None or first not in earlier:
        listed = ", ".join(map(str, reversed(earlier[:5]))) or "none"
        raise CheckpointNotFoundError(f"{last} did not begin at {begin}; before it there are: {listed}")
    ends = [one for one in reversed(names) if _moment(one) > _moment(first)]
    return Stretch(open_wanted(storage, str(first)), tuple(open_wanted(storage, str(one)) for one in ends))


def _back_from(survey: Survey, last: CheckpointName) -> Iterable[Segment]:
    """Return the lineage of ``last``, without what was committed after it."""
    lineage = Lineage(survey, last.attempt).whole()
    if not lineage.segments:
        assert lineage.broken is not None  # noqa: S101 - otherwise it has the attempt's own segment
        raise lineage.broken
    return [Segment(last.attempt, last), *lineage.segments[1:]]


def _moment(name: CheckpointName) -> tuple[int, int]:
    return name.cycles, name.micro_step
