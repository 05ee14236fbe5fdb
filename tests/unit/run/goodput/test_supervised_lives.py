"""Lives of many shapes under `ckptkit run`: their classes add up to the wall clock, and are what really happened.

The heartbeat is written, read and stored by the real code; only time, processes and the storage are made up.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptkit.format.events import Began, Ended, Event, How, Saved
from ckptkit.manager.heartbeat import STACKS_SIGNAL, VARIABLE, HeartbeatWriter, Phase, read_records
from ckptkit.run.goodput import Account, account_of, life_of
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.supervisor import life_log
from ckptkit.tools.supervisor.diagnosis import RestartBudget, diagnose
from ckptkit.tools.supervisor.hang import Hang
from ckptkit.tools.supervisor.life import SupervisedLife
from ckptkit.tools.supervisor.life_log import LifeLog

OURS, OTHER = "ours", "other"
SHAPES = ("import", "restoring", "killed", "hung", "woken", "twice", "after_another_run", "failed_restore", "finished")


class World:
    """One machine, its clock, and the events that lie at two roots."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.begun = self.ended = 0.0
        self.is_ours = True  # whether the seconds that pass belong to the run at OURS
        self.truth: Counter[str] = Counter()
        self.steps: list[tuple[int, int, float]] = []  # attempt, batch, seconds
        self.committed = {OURS: 0, OTHER: 0}
        self.from_batches: dict[int, int] = {}
        self.events: dict[tuple[str, int], list[Event]] = {}
        self.lives: list[SupervisedLife] = []
        self.log = LifeLog("ab" * 16, lambda root: root, pytest.fail, boot=lambda: "boot")

    def monotonic(self) -> float:
        return self.now

    def clock(self) -> datetime:
        return datetime(2026, 5, 1, tzinfo=timezone.utc) + timedelta(seconds=self.now)

    def spend(self, what: str, seconds: float) -> None:
        self.truth[what] += seconds
        self.now += seconds

    def store(self, root: str, attempt: int, events: list[Event]) -> None:
        self.events[root, attempt].extend(events)

    def account(self) -> Account:
        """Return that of the run at OURS; of a life without a commit, its own events are lost."""
        lives = []
        for (root, attempt), events in self.events.items():
            if root == OURS:
                has_stored = any(isinstance(one, Saved | Ended) for one in events)
                lives.append(life_of(attempt, [one for one in events if has_stored or not isinstance(one, Began)]))
        return account_of(lives)


class Command:
    """One life of the command: a launcher, and one process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.folder = world.folder / str(len(world.lives))
        self.folder.mkdir()
        self.life = SupervisedLife(len(world.lives) + 1, world.clock(), world.now)
        os.environ[VARIABLE] = str(self.folder)
        self.heart = HeartbeatWriter(world.monotonic)
        self.root, self.attempt, self.batch = "", 0, 0

    def restore(self, root: str, seconds: float) -> None:
        world = self.world
        self.heart.begin(world.monotonic)
        if root == OURS and not world.is_ours:
            world.is_ours, world.begun = True, world.begun or world.now
        world.spend("starting", seconds)
        self.root, self.batch = root, world.committed[root]
        self.attempt = 1 + sum(one == root for one, _ in world.events)
        began = Began(
            at=world.clock().isoformat(),
            checkpoint=None,
            progress=NumpyRun()._progress_at(self.batch),
            world_size=1,
            uptime_seconds=world.now,
            boot="boot",
            born_seconds=self.heart.born,
            spent=self.heart.spent(),
        )
        world.events[root, self.attempt] = [began]
        if root == OURS:
            world.from_batches[self.attempt] = self.batch
        self.heart.restored(root=root, attempt=self.attempt, checkpoint=None, micro_step=self.batch, rank=0, ranks=1)

    def train(self, steps: int, seconds: float, *, saves: bool) -> None:
        """Train, and save before the last step."""
        for number in range(steps):
            if saves and number == steps - 1 and number:
                self.save()
            what = "training" if self.heart._record.phase is Phase.TRAINING else "starting"
            self.world.spend(what, seconds)
            self.batch += 1
            if self.root == OURS and what == "training":
                self.world.steps.append((self.attempt, self.batch, seconds))
            self.heart.step(self.batch)

    def save(self) -> None:
        world = self.world
        with self.heart.during(Phase.SAVING):
            taken, spent = world.now, self.heart.spent()
            trained = spent.get("training", 0.0)
            world.spend("saving", 0.25)
        self.heart.committed(self.batch, trained)
        world.committed[self.root] = self.batch
        saved = Saved(
            at=world.clock().isoformat(),
            checkpoint="c",
            progress=NumpyRun()._progress_at(self.batch),
            took_seconds=0.25,
            stall_seconds=0.25,
            queue_seconds=0.0,
            size_bytes=1,
            skipped_saves=0,
            uptime_seconds=world.now,
            taken_seconds=taken,
            spent=spent,
        )
        world.events[self.root, self.attempt].append(saved)

    def close(self, how: How = "finished") -> None:
        self.save()
        world = self.world
        ended = Ended(
            at=world.clock().isoformat(),
            how=how,
            progress=NumpyRun()._progress_at(self.batch),
            error=None,
            message="",
            uptime_seconds=world.now,
            spent=self.heart.spent(),
        )
        world.events[self.root, self.attempt].append(ended)
        self.heart.end(how)

    def hang(self, seconds: float) -> None:
        (record,) = read_records(self.folder.glob("*.heartbeat"))
        life = self.life
        life.hang, life.hang_from = Hang(record, seconds), record.last_sign_at
        self.world.spend("hung", seconds)
        life.hang_phases, life.hang_until = {record.pid: record.phase}, self.world.now

    def die(self, returncode: int, lingers: float, after: str = "down") -> None:
        """End the process, and then its launcher."""
        life, world = self.life, self.world
        life.records = read_records(self.folder.glob("*.heartbeat"))
        if self.heart._is_shown:
            faulthandler.unregister(STACKS_SIGNAL)
            os.close(self.heart._stacks)
        atexit.unregister(self.heart._exit)
        life.deaths = {one.pid: world.now for one in life.records}
        world.spend(after if life.records else "starting", lingers)
        life.ended, life.returncode = world.now, returncode
        world.ended = world.now
        world.lives.append(life)
        world.log.enter(life, RestartBudget(99).judge(life, diagnose(life)), 0.0)


def live(world: World, shape: str, seconds: float, steps: int, lingers: float) -> None:
    command = Command(world)
    if not world.begun and shape != "after_another_run":
        world.begun = world.now
    if shape == "after_another_run":
        now, truth = world.now, world.truth.copy()
        command.heart.begin(world.monotonic)
        world.spend("starting", seconds)
        command.restore(OTHER, seconds)
        command.train(steps, seconds, saves=True)
        command.close()
        world.truth = truth
        if world.begun:
            world.truth["down"] += world.now - now
        else:
            world.is_ours = False
    elif shape != "twice":  # the birth of a process that trains twice is the begin of its first restore here
        world.spend("starting", seconds)
    if shape == "import":
        command.die(1, lingers)
        return
    if shape in ("restoring", "failed_restore"):
        command.heart.begin(world.monotonic)
        world.spend("starting", seconds)
        if shape == "restoring":
            command.die(-9, lingers)
            return
    command.restore(OURS, seconds)
    command.train(steps, seconds, saves=True)
    if shape == "twice":
        command.close()
        world.spend("rest", 2 * seconds)
        command.restore(OURS, seconds)
        command.train(steps, seconds, saves=True)
    if shape == "hung":
        command.hang(3 * seconds)
        world.spend("hung", seconds)  # it does not even end when it is asked to
    elif shape == "woken":
        command.hang(3 * seconds)
        command.train(1, seconds, saves=False)
        command.close("preempted")
    elif shape == "finished":
        command.close()
    is_good = shape in ("woken", "finished")
    command.die(0 if shape == "finished" else -9, lingers, "rest" if is_good else "down")


def counted(world: World) -> float:
    """Return the seconds of training that no later attempt did again."""
    found, least = 0.0, world.committed[OURS]  # every life ends with all of it in a checkpoint, or died
    for attempt in sorted(world.from_batches, reverse=True):
        found += sum(seconds for one, batch, seconds in world.steps if one == attempt and batch <= least)
        least = min(least, world.from_batches[attempt])
    return found


def run(shapes: list[tuple[str, int, int, int]], pause: float = 0.5) -> tuple[World, Account]:
    """Let the shapes live one after the other; those without a training at their end belong to the next."""
    folder = Path(tempfile.mkdtemp())
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        world = World(folder)
        stack.enter_context(mock.patch.dict(os.environ))
        for name in ("faulthandler.register", "faulthandler.enable", "os.register_at_fork"):
            stack.enter_context(mock.patch(name))
        stack.enter_context(mock.patch.object(life_log, "append_events", world.store))
        for number, (shape, quarters, steps, lingers) in enumerate(shapes):
            if number and world.begun:
                world.spend("down", pause)
            live(world, shape, quarters / 4, steps, lingers / 4)
        return world, world.account()


def check(world: World, account: Account) -> None:
    assert account.seconds == pytest.approx(world.ended - world.begun, rel=1e-3)
    assert sum(account.totals.values()) == pytest.approx(account.seconds)
    stored = [life_of(attempt, events) for (root, attempt), events in world.events.items() if root == OURS]
    watched = {one.number: one for life in stored for one in life.watched}
    assert len(watched) == len(world.lives)
    for one in watched.values():
        assert sum(one.phases.values()) == pytest.approx(one.seconds - one.earlier_seconds, rel=1e-3)
    totals = account.totals
    assert totals["trained"] == pytest.approx(counted(world), abs=0.01)
    assert totals["trained"] + totals["repeated"] == pytest.approx(sum(one[2] for one in world.steps), abs=0.01)
    for name in ("starting", "saving", "hung", "down", "rest"):
        assert totals[name] == pytest.approx(world.truth[name], abs=0.01), name
    assert totals["unseen"] == 0
    assert not account.is_rough


@pytest.mark.parametrize("first", SHAPES)
def test_two_lives_add_up_to_the_wall_clock(first):
    for last in SHAPES:
        check(*run([(first, 3, 4, 5), (last, 2, 3, 8), ("finished", 1, 3, 0)]))


@given(
    st.lists(
        st.tuples(st.sampled_from(SHAPES), st.integers(1, 40), st.integers(1, 5), st.integers(0, 40)),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 12),
)
def test_lives_of_any_shape_add_up_to_the_wall_clock(shapes, pause):
    """The last one trains: nobody knows the root of a run that was never restored."""
    check(*run([*shapes, ("finished", 2, 3, 1)], pause / 4))
