import shutil
from datetime import datetime, timezone

import pytest
from support.heartbeats import life_of, record_of

import ckptkit as ck
from ckptkit.errors import StorageError
from ckptkit.format.events import LifeEnded, Stacks
from ckptkit.manager.heartbeat import Phase
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Index
from ckptkit.storage import open_storage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.report.story import read_story
from ckptkit.tools.supervisor.diagnosis import RestartBudget, diagnose
from ckptkit.tools.supervisor.hang import Stack
from ckptkit.tools.supervisor.life_log import LifeLog

TOKEN = "0" * 32


@pytest.fixture
def root(tmp_path):
    run = NumpyRun()
    with ck.CheckpointManager(tmp_path / "root") as manager:
        manager.restore(run)
        for _ in run.train_until(8):
            manager.step(run)
        manager.save_final(run)
    return tmp_path / "root"


def stored(root):
    storage = open_storage(root)
    files = read_events(storage, Index(storage))
    assert not files.problems
    kinds = (LifeEnded, Stacks)
    return [event for segment in files.segments for event in segment.events if isinstance(event, kinds)]


def enter(life_log: LifeLog, life) -> LifeEnded:
    return life_log.enter(life, RestartBudget(9).judge(life, diagnose(life)), 1.5)


def life_at(root, **fields):
    record = record_of(Phase.TRAINING, opened_at=4.0, entered_at=10.0, stepped_at=90.0, root=str(root), attempt=1)
    record.banks[record.bank].seconds[Phase.RESTORING] = 6.0
    return life_of(record, returncode=-9, **fields)


def test_life_is_stored_after_the_events_of_its_attempt(root):
    other = life_at(root)
    other.records[0].rank = 1
    enter(LifeLog(TOKEN, open_storage, pytest.fail), other)
    assert stored(root) == [], "a machine without rank 0 stores nothing"
    life = life_at(root)
    life.stacks = [Stack(0, 100, ["  one", "two"])]
    event = enter(LifeLog(TOKEN, open_storage, pytest.fail), life)
    assert stored(root)[0] == event
    assert stored(root)[1].lines == ["  one", "two"]
    assert (event.phases["starting"], event.phases["training"]) == (4.0, 90.0)
    assert sum(event.phases.values()) == event.seconds == 100.0
    assert (event.attempt, event.uptime_seconds, event.down_seconds) == (1, 100.0, 1.5)
    assert not read_story(open_storage(root), datetime(2026, 1, 1, tzinfo=timezone.utc)).problems


def test_life_that_died_in_the_restore_waits_for_the_next(root):
    """Only a restored run tells the rank, where no launcher does."""
    record = record_of(Phase.RESTORING, opened_at=60.0, entered_at=60.0, rank=-1)
    life_log = LifeLog(TOKEN, open_storage, pytest.fail)
    enter(life_log, life_of(returncode=1))
    event = enter(life_log, life_of(record, number=2, returncode=1))
    assert stored(root) == []
    enter(life_log, life_at(root, number=3))
    assert [life.number for life in stored(root)] == [1, 2, 3]
    assert stored(root)[1] == event
    assert event.attempt is None
    assert (event.phases["starting"], event.phases["restoring"]) == (60.0, 40.0)


def test_each_life_is_stored_in_the_run_that_it_trained(root, tmp_path):
    """The first one when its storage answers again, and not in that of the second one."""
    other = tmp_path / "other"
    shutil.copytree(root, other)
    fails = True

    def opening(url):
        if fails and url == str(root):
            raise StorageError("gone")
        return open_storage(url)

    life_log = LifeLog(TOKEN, opening, lambda line: None)
    enter(life_log, life_at(root, number=1))
    enter(life_log, life_at(other, number=2))
    fails = False
    enter(life_log, life_at(other, number=3))
    assert [one.number for one in stored(root)] == [1]
    assert [one.number for one in stored(other)] == [2, 3]


def test_storage_that_fails_is_told_once_and_tried_again(root):
    said = []
    answers = [StorageError("gone"), StorageError("gone"), None]

    def opening(url):
        error = answers.pop(0)
        if error is not None:
            raise error
        return open_storage(url)

    life_log = LifeLog(TOKEN, opening, said.append)
    for number in (1, 2, 3):
        enter(life_log, life_at(root, number=number))
    assert len(said) == 1
    assert "could not store this life" in said[0]
    assert [one.number for one in stored(root)] == [1, 2, 3]
