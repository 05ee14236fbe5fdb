"""Decides at which micro-steps a save is due: `DueSaves`.

Training thread only; in a job of many ranks `DueSaves.is_due` may be a collective.
"""

from __future__ import annotations

from datetime import timedelta

from ckptkit.core.progress import Progress
from ckptkit.manager.options import MidCycle
from ckptkit.manager.rank_sync import RankSync
from ckptkit.snapshot import Capturable


class DueSaves:
    """Applies a manager's schedule and its ``mid_cycle`` to the progress of one attempt.

    Args:
        rank_sync: The ranks of the job, with the schedule.
        mid_cycle: What happens to a save that is due between two boundaries, as for `ckptkit.CheckpointManager`.
    """

    def __init__(self, rank_sync: RankSync, mid_cycle: MidCycle) -> None:
        self._rank_sync = rank_sync
        self._mid_cycle = mid_cycle
        self._waits_for_boundary = False
        self._cycle_start: Progress | None = None

    def is_due(self, progress: Progress, since: timedelta) -> bool:
        """Return whether to save now, ``since`` after the last save began; may be a collective."""
        due = self._rank_sync.is_due(progress, since)
        if self._mid_cycle == "align":
            due = due or self._waits_for_boundary
            self._waits_for_boundary = due and not progress.at_boundary
            return due and progress.at_boundary
        return due

    def begin_cycle(self, state: Capturable, progress: Progress) -> None:
        """At a boundary, let ``state`` keep what ``"rewind"`` stores until the next one."""
        if self._mid_cycle == "rewind" and progress.at_boundary:
            self._cycle_start = state.mark_cycle_start()

    def stored_at(self, progress: Progress) -> Progress:
        """Return the progress that a save at ``progress`` stores."""
        start = self._cycle_start
        return start if start is not None and start.cycles == progress.cycles else progress
