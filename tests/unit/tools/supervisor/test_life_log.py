import shutil
from datetime import datetime, timezone

import pytest
from support.heartbeats import life_of, record_of

import ckptkit as ck
from ckptkit.errors import StorageError
from ckptkit.format.events import LifeEnded, Stacks
from ckptkit.manager.heartbeat import Phase, Record
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Index
from ckptkit.storage import open_storage
from ckptkit.testing.state import NumpyRun
from ckptkit.tools.report.history import read_story
from ckptkit.tools.supervisor.diagnosis import RestartBudget, diagnose
from ckptkit.tools.supervisor.hang import Hang, Stack
from ckptkit.tools.supervisor.life import SupervisedLife
from ckptkit.tools.supervisor.life_log import LifeLog, Recovery, earlier_seconds, leader_of, phases_of

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
    record.spent[Phase.RESTORING] = 6.0
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


def test_recovery_lasts_until_the_first_micro_step_of_any_training(root):
    life_log, recovery = LifeLog(TOKEN, open_storage, pytest.fail), Recovery()
    first = record_of(Phase.ENDED, pid=99, opened_at=3.0, stepped_at=50.0, root=str(root), attempt=1, how="finished")
    first.to_first_step[Phase.STARTING], first.to_first_step[Phase.EVALUATING] = 1.0, 30.0
    trained = life_at(root, deaths={100: 98.0})  # its record is that of a later training
    trained.records = (first, *trained.records)

    def end(life):
        seconds = recovery.end(life, enter(life_log, life))
        return seconds and {phase: value for phase, value in seconds.items() if value}

    assert end(trained) is None, "nothing died before"
    assert end(life_of(number=2, returncode=1)) is None
    assert end(trained) == {"dead": 2.0, "down": 3.0, "starting": 104.0, "evaluating": 30.0}
    assert end(trained) == {"dead": 2.0, "down": 1.5, "starting": 4.0, "evaluating": 30.0}


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
    """The first ones when its storage answers again, and not in that of the third; that it failed is told once."""
    other, said, fails = tmp_path / "other", [], True
    shutil.copytree(root, other)

    def opening(url):
        if fails and url == str(root):
            raise StorageError("gone")
        return open_storage(url)

    life_log = LifeLog(TOKEN, opening, said.append)
    for number, place in enumerate((root, root, other), 1):
        enter(life_log, life_at(place, number=number))
    assert ["could not store this life" in line for line in said] == [True]
    fails = False
    enter(life_log, life_at(other, number=4))
    assert [[event.number for event in stored(place)] for place in (root, other)] == [[1, 2], [3, 4]]
    fails = True
    enter(life_log, life_at(root, number=5))
    assert len(said) == 2, "another outage is told, too"


def trained(pid: int = 100, *, opened_at: float = 4.0, phase: Phase = Phase.TRAINING, **fields) -> Record:
    """Of a process that was restored 6 s after it had opened the file."""
    given = {"attempt": 1, "trainings": 1, "born_at": opened_at, "entered_at": opened_at + 6.0, **fields}
    record = record_of(phase, pid=pid, opened_at=opened_at, **given)
    record.spent[Phase.RESTORING] = 6.0
    return record


def told(life: SupervisedLife) -> dict[str, float]:
    leader = leader_of(life.records)
    phases = phases_of(life, leader)
    assert sum(phases.values()) == pytest.approx(life.seconds - earlier_seconds(life, leader))
    return {name: seconds for name, seconds in phases.items() if seconds}


def test_nothing_is_trained_after_death_of_any_rank():
    assert told(life_of(returncode=1)) == {"starting": 100.0}
    assert told(life_of(trained(), deaths={100: 60.0})) == {
        **{"starting": 4.0, "restoring": 6.0, "training": 50.0, "dead": 40.0}
    }
    finished = trained(phase=Phase.ENDED, how="finished")
    assert told(life_of(finished, deaths={100: 60.0}))["ended"] == 50.0 + 40.0, "the rest of the script"
    others = {"ranks": 2, "stepped_at": 70.0}
    waiting, dead = trained(100, rank=0, **others), trained(101, rank=1, **others)
    assert told(life_of(waiting, dead, deaths={101: 71.0}))["dead"] == 29.0, "it waited for the dead rank"
    waiting.stepped_at = 80.0  # it got on without the other one
    assert "dead" not in told(life_of(waiting, dead, deaths={101: 71.0}))


def hung(record: Record, *, phase: Phase = Phase.TRAINING, until: float = 60.0) -> SupervisedLife:
    """Silent from 30 s on, and asked to end at 60 s."""
    hang = Hang(record, 25.0, is_stopped=True)
    return life_of(record, hang=hang, hang_phases={record.pid: phase}, hang_from=30.0, hang_until=until)


def test_hang_belongs_to_what_the_process_did_then():
    """It hung in a save; or it took a step, saved and ended once it might go on. The training before it stays that."""
    assert told(hung(trained(stepped_at=30.0)))["hung"] == 70.0
    record = trained(phase=Phase.SAVING, entered_at=30.0)
    record.spent[Phase.TRAINING] = 20.0
    assert told(hung(record, phase=Phase.SAVING)) == {
        **{"starting": 4.0, "restoring": 6.0, "training": 20.0, "hung": 70.0}
    }
    record = trained(phase=Phase.ENDED, how="preempted", stepped_at=61.0)
    record.spent[Phase.TRAINING] = 61.0 - 10.0
    record.offsets[Phase.ENDED] = -61.0
    found = told(hung(record))
    assert (found["hung"], found["training"], found["ended"]) == (30.0, 21.0, 39.0)


def test_second_process_of_a_command_has_its_own_seconds():
    """``bash -c 'python a.py; python b.py'``"""
    first = trained(90, phase=Phase.ENDED, how="finished", root="a")
    second = trained(91, opened_at=50.0, born_at=49.0, root="b")
    life = life_of(first, second, deaths={90: 48.0, 91: 99.0})
    assert leader_of(life.records) is second
    assert told(life) == {"starting": 1.0, "restoring": 6.0, "training": 43.0, "dead": 1.0}
    unrestored = record_of(Phase.RESTORING, pid=92, opened_at=60.0, rank=-1)
    assert leader_of([unrestored, first]) is first
