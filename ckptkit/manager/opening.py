"""Opens a run for a manager: takes it over, restores the state, and begins the `Run` of the new attempt.

Guarantees: a state that does not fit, or a job that cannot have a mirror, is refused before anything is taken over.
What the remains of dead saves occupy is freed, or left for a later start with a warning. Training thread only; in a job
of many ranks `open_run` is a collective.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from ckptkit.core.contents import Contents
from ckptkit.core.progress import ResumePoint
from ckptkit.errors import CkptKitError
from ckptkit.manager.due_saves import DueSaves
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.process.console import say_where, show_log
from ckptkit.manager.rank_sync import RankSync
from ckptkit.manager.run import Run
from ckptkit.manager.setup import Setup
from ckptkit.run.attempt import OneRank, Opened, Opening
from ckptkit.run.rank_protocol import follow, lead
from ckptkit.snapshot import Capturable

_log = logging.getLogger("ckptkit")


def open_run(setup: Setup, state: Capturable, checkpoint: str, *, rewind: bool) -> tuple[Run | None, ResumePoint]:
    """Apply the checkpoint to ``state`` and take over the run, if it is; see `CheckpointManager.restore`."""
    HEARTBEAT.begin(setup.system.monotonic)
    show_log()
    setup.denormals.begin()  # first: threads of pipelines and of the framework that start from here on inherit it
    try:
        return _open_run(setup, state, checkpoint, rewind=rewind)
    except BaseException as error:
        setup.denormals.end()
        HEARTBEAT.fail(error)
        if setup.hooks is not None and isinstance(error, CkptKitError):
            setup.hooks.unrestored(state, str(error))
        raise


def _open_run(setup: Setup, state: Capturable, checkpoint: str, *, rewind: bool) -> tuple[Run | None, ResumePoint]:
    if setup.saving.mid_cycle == "rewind":
        state.mark_cycle_start()  # first: where it is refused, nothing was changed
    rank_sync = RankSync(state.world, setup.save)
    setup.mirrors.reach(rank_sync)
    system = setup.system
    opening = Opening(checkpoint, rewind, system.host, system.clock, system.new_token, state.is_over)
    opened = _open(setup, opening, state)
    progress = state.progress()
    if isinstance(opened, Contents):
        _log.info("nothing is left to train, and the run may be that of a living process: it is not taken over")
        setup.denormals.end()
        HEARTBEAT.end("complete")
        return None, replace(ResumePoint.at(progress, opened.checkpoint), complete=True)
    point = ResumePoint() if opened.contents is None else ResumePoint.at(progress, opened.contents.checkpoint)
    due_saves = DueSaves(rank_sync, setup.saving.mid_cycle)
    due_saves.begin_cycle(state, progress)
    run = Run(setup, opened, rank_sync, due_saves, began_at=progress)
    setup.mirrors.begin(opened, rank_sync, setup.ranks.patience)
    HEARTBEAT.restored(
        root=setup.storage.url,
        mirrors=setup.mirrors.urls,
        attempt=opened.document.attempt,
        checkpoint=point.checkpoint,
        micro_step=progress.batches_delivered,
        rank=rank_sync.rank,
        ranks=rank_sync.size,
    )
    say_where(setup.storage.url, point, opened.document.attempt)
    return run, point


def _open(setup: Setup, opening: Opening, state: Capturable) -> Opened | Contents:
    if state.world.size == 1:
        return setup.mirrors.open(opening, OneRank(state))
    if state.world.rank == 0:
        return lead(state.world, setup.mirrors.homes, state, lambda leader: setup.mirrors.open(opening, leader))
    return follow(state.world, setup.mirrors.homes, state)
