"""Holds what a manager was made with, and makes the parts of its run from that: `Setup`.

Training thread only.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ckptkit.checkpoint.receipts import Receipts
from ckptkit.core.progress import Progress
from ckptkit.core.save_policy import SaveEvery, SavePolicy, automatic
from ckptkit.errors import StorageError
from ckptkit.format.events import Began
from ckptkit.format.layout import CHECKPOINTS
from ckptkit.manager.auto_interval import AutoInterval
from ckptkit.manager.heartbeat.writer import HEARTBEAT
from ckptkit.manager.hooks import Hooks, hooks_of
from ckptkit.manager.mirroring.chain import Chain
from ckptkit.manager.options import (
    Mirrors,
    Preemption,
    Ranks,
    Saving,
    System,
    mirrors_of,
    refuse_other_types,
    refuse_wrong_policies,
)
from ckptkit.manager.process.denormals import DenormalsAsZero
from ckptkit.manager.rank_sync import RankSync
from ckptkit.manager.recording.recorder import AnyRecorder, NoRecorder, Recorder
from ckptkit.manager.results import SaveResults
from ckptkit.run.attempt import Opened
from ckptkit.run.event_log import EventLog
from ckptkit.run.interval import NO_HISTORY, History, read_history
from ckptkit.run.keep_policy import KeepLatest, KeepPolicy
from ckptkit.run.retention import Retention
from ckptkit.run.saver import PartSaver, Saver
from ckptkit.run.sweep import sweep
from ckptkit.snapshot import StagingArea
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


def new_recorder(setup: Setup, opened: Opened, rank_sync: RankSync, progress: Progress) -> AnyRecorder:
    """Return what records the run for ``ckptkit report``: on rank 0, unless the events are off."""
    if not (setup.saving.events and rank_sync.leads):
        return NoRecorder()
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
    """Return what writes the saves of this rank; frees what the remains of dead saves occupy, if it can."""
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
