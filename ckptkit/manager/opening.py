"""Opens a run for a manager: takes it over, restores the state, and builds the `ActiveRun` of the new attempt.

Guarantees: a state that does not fit, or a job that cannot have a mirror, is refused before anything is taken over.
What the remains of dead saves occupy is freed, or left for a later start with a warning. Training thread only; in a job
of many ranks `open_run` is a collective.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ckptkit.checkpoint.receipts import Receipts
from ckptkit.core.contents import Contents
from ckptkit.core.progress import Progress, ResumePoint
from ckptkit.core.save_policy import SaveEvery, SavePolicy, automatic, may_split_cycles
from ckptkit.errors import CkptKitError, StorageError
from ckptkit.format.events import Began
from ckptkit.format.layout import CHECKPOINTS
from ckptkit.manager.active_run import ActiveRun
from ckptkit.manager.auto_interval import AutoInterval
from ckptkit.manager.copy_memory import CopyMemory
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.hooks import Hooks, hooks_of
from ckptkit.manager.mirroring.chain import Chain
from ckptkit.manager.options import (
    ERROR_BUDGET,
    Mirrors,
    Preemption,
    Ranks,
    Saving,
    System,
    mirrors_of,
    refuse_other_types,
    refuse_wrong_policies,
)
from ckptkit.manager.preemption.request import PreemptionRequest
from ckptkit.manager.process.console import say_where, show_log
from ckptkit.manager.process.denormals import DenormalsAsZero
from ckptkit.manager.rank_sync import RankSync
from ckptkit.manager.recording.recorder import NoRecorder, Recorder
from ckptkit.manager.results import SaveResults
from ckptkit.manager.scheduler import DueSaves, Scheduler, Services
from ckptkit.manager.step_timing import StepTiming
from ckptkit.run.attempt import OneRank, Opened, Opening
from ckptkit.run.event_log import EventLog
from ckptkit.run.goodput.history import NO_HISTORY, History, read_history
from ckptkit.run.keep_policy import KeepLatest, KeepPolicy
from ckptkit.run.part_saver import PartSaver
from ckptkit.run.rank_protocol import follow, lead
from ckptkit.run.retention import Retention
from ckptkit.run.saver import Saver
from ckptkit.run.sweep import sweep
from ckptkit.snapshot import Capturable, StagingArea
from ckptkit.storage import Storage, open_storage
from ckptkit.storage.capacity import free_beside, room_of

_log = logging.getLogger("ckptkit")


@dataclass(frozen=True)
class Setup:
    """Holds what a manager was made with.

    Attributes:
        storage: The run root.
        mirrors: The further roots, if any.
        area: Stages the captures.
        save: Decides when saves are due.
        keep: What retention keeps.
        saving: How saves are taken and reported.
        ranks: What matters in a job of many ranks.
        preemption: What happens after SIGTERM or SIGUSR1.
        system: Time, chance and names.
        hooks: Take the place of the schedule under ``ckptkit doctor``; None otherwise.
        denormals: Begins with the run, and ends when it is closed.
    """

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


def new_setup(
    root: str | os.PathLike[str] | Storage,
    storage_options: Mapping[str, Any] | None,
    mirror: Mirrors,
    *,
    save: SavePolicy | None,
    keep: KeepPolicy | None,
    saving: Saving | None,
    ranks: Ranks | None,
    preemption: Preemption | None,
    system: System | None,
) -> Setup:
    """Return what a manager with these options has; hooks take the place of its root, mirrors and retention.

    Raises:
        ValueError, TypeError, StorageError: See `CheckpointManager`.
    """
    refuse_wrong_policies(save=save, keep=keep)
    refuse_other_types(
        saving=(saving, Saving),
        ranks=(ranks, Ranks),
        preemption=(preemption, Preemption),
        system=(system, System),
    )
    saving, preemption, system = saving or Saving(), preemption or Preemption(), system or System()
    storage = open_storage(root, storage_options)
    hooks = hooks_of(storage.url)  # None except under `ckptkit doctor` and `replay`
    mirrors, keep = mirrors_of(mirror), keep if keep is not None else KeepLatest(3)
    if hooks is not None:
        storage, keep = hooks.storage, hooks.keep(keep)
        saving, preemption = replace(saving, events=False), replace(preemption, then="off")
    chain = Chain(
        storage,
        mirrors if hooks is None else hooks.mirrors(mirrors),
        keep,
        tolerant=saving.on_error == "warn",
        monotonic=system.monotonic,
    )
    free_bytes = partial(free_beside, storage, CHECKPOINTS)
    return Setup(
        storage,
        chain,
        StagingArea(saving.buffer_bytes, system.monotonic, is_remote=storage.is_remote, free_bytes=free_bytes),
        save=save if save is not None else SaveEvery(optimizer_steps=100),
        keep=keep,
        saving=saving,
        ranks=ranks or Ranks(),
        preemption=preemption,
        system=system,
        hooks=hooks,
    )


def open_run(setup: Setup, state: Capturable, checkpoint: str, *, rewind: bool) -> tuple[ActiveRun | None, ResumePoint]:
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


def _open_run(
    setup: Setup, state: Capturable, checkpoint: str, *, rewind: bool
) -> tuple[ActiveRun | None, ResumePoint]:
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
    run = _new_run(setup, opened, rank_sync, due_saves, progress)
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


def _new_run(setup: Setup, opened: Opened, rank_sync: RankSync, due_saves: DueSaves, progress: Progress) -> ActiveRun:
    saving, monotonic = setup.saving, setup.system.monotonic
    leads = rank_sync.leads
    restored = None if opened.contents is None else opened.contents.checkpoint
    recorder = _new_recorder(setup, opened, rank_sync, progress) if saving.events and leads else NoRecorder()
    saver = _new_saver(setup, opened, rank_sync) if leads else _new_part_saver(setup, opened, rank_sync)

    def newest() -> str | None:
        return restored if saver.newest is None else str(saver.newest)

    allowed = ERROR_BUDGET if saving.on_error == "warn" else 1
    results = SaveResults(
        setup.storage.url, allowed, saving.on_save, is_alone=rank_sync.is_alone, commits=leads, newest=newest
    )
    request = PreemptionRequest(
        setup.preemption,
        newest=newest,
        url=setup.storage.url,
        monotonic=monotonic,
    )
    auto_interval = _new_auto_interval(setup, opened, rank_sync, results, progress)
    auto_interval.record = recorder.interval
    memory = CopyMemory(setup.area, at_boundaries=saving.mid_cycle != "exact" or not may_split_cycles(setup.save))
    services = Services(
        saver, rank_sync, results, setup.mirrors, recorder, request, StepTiming(monotonic), auto_interval, memory
    )
    scheduler = Scheduler(
        services,
        setup.area,
        window_use="late" if saving.window == "auto" and _is_examined(setup) else saving.window,
        check_replicas=setup.ranks.check_replicas,
        clock=setup.system.clock,
        monotonic=monotonic,
    )
    return ActiveRun(
        services,
        scheduler,
        due_saves,
        when_busy=saving.when_busy,
        monotonic=monotonic,
        began_at=progress,
        hooks=setup.hooks,
        denormals=setup.denormals,
    )


def _is_examined(setup: Setup) -> bool:
    """Return whether ``ckptkit doctor`` examines the saves of the script's own schedule."""
    return setup.hooks is not None and setup.hooks.keeps_schedule


def _new_recorder(setup: Setup, opened: Opened, rank_sync: RankSync, progress: Progress) -> Recorder:
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
    return Recorder(EventLog(setup.storage, opened.document), began, clock=clock, monotonic=monotonic)


def _new_auto_interval(
    setup: Setup, opened: Opened, rank_sync: RankSync, results: SaveResults, progress: Progress
) -> AutoInterval:
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


def _new_saver(setup: Setup, opened: Opened, rank_sync: RankSync) -> Saver:
    retention = Retention(setup.storage, opened.document, setup.mirrors.sparing(setup.keep), setup.mirrors.has)
    try:
        sweep(setup.storage, opened.document, has_mirror=setup.mirrors.exists)
    except StorageError as error:
        # The run is already taken over; the remains of dead saves only cost space.
        _log.warning("could not remove what earlier saves left; a later start will: %s", error)
    receipts = None
    if not rank_sync.is_alone:
        receipts = Receipts(setup.storage, rank_sync.size, setup.ranks.patience, monotonic=setup.system.monotonic)
    room = room_of(setup.storage, CHECKPOINTS)
    return Saver(setup.storage, opened.document, opened.run_id, retention, receipts, room=room)


def _new_part_saver(setup: Setup, opened: Opened, rank_sync: RankSync) -> PartSaver:
    return PartSaver(setup.storage, opened.document, rank_sync.rank, room_of(setup.storage, CHECKPOINTS))
