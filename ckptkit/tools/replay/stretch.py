"""Chooses the checkpoints of a run between which it is trained again.

Guarantees: the last one descends from the first, and each has more micro-steps than the one before. Reads and never
writes. One thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ckptkit.checkpoint.open import OpenedCheckpoint
from ckptkit.errors import CheckpointNotFoundError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Survey
from ckptkit.run.lineage import Segment, trace
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
    first = names[1] if begin is None and len(names) > 1 else CheckpointName.parse(begin or "")
    if begin is None and first is None:
        raise CheckpointNotFoundError(
            f"{last} is the only checkpoint of its training at {storage.url}: there is nothing to begin at. Keep more "
            "of them, as with keep=ckptkit.KeepLatest(5)"
        )
    if first is None or first not in names[1:]:
        listed = ", ".join(map(str, reversed(names[1:][:5]))) or "none"
        raise CheckpointNotFoundError(f"{last} did not begin at {begin}; before it there are: {listed}")
    opened = [open_wanted(storage, str(one)) for one in reversed(names[: names.index(first) + 1])]
    return Stretch(opened[0], tuple(_rising(opened[1:], _steps(opened[0]))))


def _back_from(survey: Survey, last: CheckpointName) -> Iterable[Segment]:
    """Return the lineage of ``last``, without what was committed after it."""
    _, *older = trace(survey, last.attempt).segments
    return [Segment(last.attempt, last), *older]


def _rising(opened: Iterable[OpenedCheckpoint], steps: int) -> Iterable[OpenedCheckpoint]:
    """Yield those with more micro-steps than all before: of one moment there may be two, with other metrics."""
    for one in opened:
        if _steps(one) > steps:
            steps = _steps(one)
            yield one


def _steps(one: OpenedCheckpoint) -> int:
    return one.manifest.progress.batches_delivered
