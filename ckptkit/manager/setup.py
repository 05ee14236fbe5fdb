"""Makes the parts of a run from what its manager was made with: `Setup`. Training thread only."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from ckptkit.checkpoint.receipts import Receipts
from ckptkit.core.progress import Progress
from ckptkit.core.save_policy import SavePolicy, automatic
from ckptkit.errors import StorageError
from ckptkit.format.events import Began
from ckptkit.format.layout import CHECKPOINTS
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.hooks import Hooks
from ckptkit.manager.mirrors import Chain
from ckptkit.manager.options import (
    Preemption,
    Ranks,
    Saving,
    System,
)
from ckptkit.manager.process import DenormalsAsZero
from ckptkit.manager.ranks import RankSync
from ckptkit.manager.recorder import Recorder
from ckptkit.manager.schedule import AutoInterval
from ckptkit.manager.writer import SaveResults
from ckptkit.run.attempt import Opened
from ckptkit.run.event_log import EventLog
from ckptkit.run.interval import NO_HISTORY, History, read_history
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.run.retention import Retention
from ckptkit.run.saver import PartSaver, Saver
from ckptkit.run.sweep import sweep
from ckptkit.snapshot import StagingArea
from ckptkit.storage import Storage
from ckptkit.storage.capacity import room_of

_log = logging.getLogger("ckptkit")


@dataclass(frozen=True)
class Setup:
    """Holds what a manager was made with."""

    storage: Storage
    mirrors: Chain
    area: StagingArea
    save: SavePolicy
    keep: KeepPolicy
    saving: Saving
    ranks: Ranks
    preemption: Preemption
    system: System
    hooks: Hooks | None
    denormals: DenormalsAsZero = field(default_factory=DenormalsAsZero)


def new_recorder(setup: Setup, opened: Opened, rank_sync: RankSync, progress: Progress) -> Recorder:
    clock, monotonic = setup.system.clock, setup.system.monotonic
    began = Began(
        at=clock().isoformat(),
        checkpoint=opened.document.parent,
        progress=progress,
        world_size=rank_sync.size,
        uptime_seconds=max(0.0, monotonic()),
        boot=setup.system.boot,
        born_seconds=max(0.0, HEARTBEAT.born),
        spent=HEARTBEAT.spent(),
    )
    log = EventLog(setup.storage, opened.document) if setup.saving.events and rank_sync.leads else None
    return Recorder(log, began, clock=clock, monotonic=monotonic)


def new_auto_interval(
    setup: Setup, opened: Opened, rank_sync: RankSync, results: SaveResults, progress: Progress
) -> AutoInterval:
    """Return what chooses the interval of `SaveEvery.auto`; ranks agree on the first one."""
    auto = automatic(setup.save)
    history = NO_HISTORY if auto is None or not rank_sync.leads else _history(setup, opened)
    auto_interval = AutoInterval(auto, results, history, clock=setup.system.clock, monotonic=setup.system.monotonic)
    if auto is not None:
        auto_interval.cycles = int(rank_sync.say(str(auto_interval.cycles))[0])
        rank_sync.due_from(progress.cycles + auto_interval.cycles)
    return auto_interval


def _history(setup: Setup, opened: Opened) -> History:
    try:
        return read_history(setup.storage, opened.document.attempt)
    except StorageError as error:
        _log.warning(
            "could not read the events of earlier attempts, so SaveEvery.auto begins as in a new run: %s", error
        )
        return NO_HISTORY


def new_saver(setup: Setup, opened: Opened, rank_sync: RankSync) -> Saver | PartSaver:
    """Return what writes the saves of this rank; free what the remains of dead saves occupy, if it can."""
    room = room_of(setup.storage, CHECKPOINTS)
    if not rank_sync.leads:
        return PartSaver(setup.storage, opened.document, rank_sync.rank, room)
    retention = Retention(setup.storage, opened.document, setup.mirrors.sparing(setup.keep), setup.mirrors.has)
    try:
        sweep(setup.storage, opened.document, has_mirror=setup.mirrors.exists)
    except StorageError as error:
        # The run is already taken over; the remains of dead saves only cost space.
        _log.warning("could not remove what earlier saves left; a later start will: %s", error)
    receipts = None
    if not rank_sync.is_alone:
        receipts = Receipts(setup.storage, rank_sync.size, setup.ranks.patience, monotonic=setup.system.monotonic)
    return Saver(setup.storage, opened.document, opened.run_id, retention, receipts, room=room)
