from pathlib import Path
from typing import get_args

import pytest
from support.clock import Manual
from support.process import python

from ckptkit.errors import ResumeError, SaveFailedError, StaleAttemptError, StorageError
from ckptkit.format.events import PhaseName
from ckptkit.manager.heartbeat import (
    SIZE_BYTES,
    VARIABLE,
    HeartbeatWriter,
    Phase,
    Record,
    category_of,
    new_record,
    read_record,
    read_records,
)


@pytest.fixture
def clock():
    return Manual(100.0)


@pytest.fixture
def heart(tmp_path, monkeypatch, clock):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr("faulthandler.register", lambda *_, **__: None)  # would outlive the test
    monkeypatch.setattr("faulthandler.is_enabled", lambda: True)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    return HeartbeatWriter(clock)


def read(folder: Path) -> Record:
    (record,) = read_records(folder.glob("*.heartbeat"))
    return record


def begun(heart, **fields):
    heart.begin()
    given = {"root": "r", "attempt": 3, "checkpoint": "c", "micro_step": 20, "rank": 0, "ranks": 1}
    heart.restored(**{**given, **fields})


def test_seconds_of_phases_add_up(heart, clock, tmp_path):
    heart.begin()
    clock.now += 2
    heart.restored(root="r", attempt=1, checkpoint=None, micro_step=0, rank=0, ranks=1)
    clock.now += 3
    heart.step(1)
    clock.now += 4
    with heart.during(Phase.SAVING):
        clock.now += 5
        with heart.during(Phase.STORAGE):
            clock.now += 6
    heart.step(2)
    clock.now += 7
    found = read(tmp_path).seconds(clock.now)
    del found[Phase.STARTING]
    expected = [2, 0, 3, 11, 0, 5, 6, 0]
    assert list(found.values()) == expected
    assert sum(read(tmp_path).seconds(clock.now).values()) == sum(expected)


def test_record_tells_where_the_run_is(heart, clock, tmp_path):
    begun(heart, mirrors=["m" * 5000])
    assert read(tmp_path).text("mirrors") == ""  # half a URL is another one
    begun(heart, root="r" * 5000, checkpoint="x\0y")
    assert (read(tmp_path).text("root"), read(tmp_path).text("checkpoint")) == ("r" * 1023, "x?y")
    begun(heart)
    heart.begin_step()
    assert (read(tmp_path).micro_step, read(tmp_path).begun_step) == (20, 21)
    clock.now += 1
    heart.step(21)
    record = read(tmp_path)
    assert (record.micro_step, record.begun_step, record.stepped_at) == (21, 21, 101)
    assert (record.text("root"), record.attempt, record.text("checkpoint"), record.restored_step) == ("r", 3, "c", 20)
    assert record.phase is Phase.TRAINING
    clock.now += 5
    heart.step(22)
    assert [*read(tmp_path).to_first_step] == [*record.to_first_step]
    assert (sum(record.to_first_step), record.to_first_step[Phase.FIRST_STEP]) == (1, 1)


def test_second_training_has_its_own_seconds(heart, clock, tmp_path):
    """Also while its restore has not ended: until then, all seconds are those of the first one."""
    begun(heart)
    heart.step(21)
    clock.now += 5
    heart.end("finished")
    clock.now += 2
    heart.begin()
    clock.now += 1
    record = read(tmp_path)
    assert (record.trainings, record.born_at, list(record.before)) == (1, 100, [0.0] * len(Phase))
    heart.restored(root="s", attempt=1, checkpoint=None, micro_step=0, rank=0, ranks=1)
    heart.step(1)
    clock.now += 3
    record = read(tmp_path)
    assert (record.trainings, record.born_at) == (2, 107)
    assert (record.before[Phase.TRAINING], record.before[Phase.ENDED]) == (5, 2)
    assert heart.spent()["training"] == 3
    assert heart.spent() == {"restoring": 1, "training": 3}


def test_restore_that_failed_belongs_to_the_next(monkeypatch):
    """The first attempt of a process is as old as the process, whatever was tried before."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    heart = HeartbeatWriter()
    heart.begin()
    born = heart.born
    heart.begin()
    assert heart.born == pytest.approx(born, abs=0.1)
    heart.restored(root="r", attempt=1, checkpoint=None, micro_step=0, rank=0, ranks=1)
    heart.begin()
    assert heart.born > born + 0.1


def test_slow_step_fades(heart, clock, tmp_path):
    begun(heart)
    heart.step(21)
    clock.now += 8
    heart.step(22)
    assert read(tmp_path).slowest == 8
    for step in range(23, 23 + 350):
        clock.now += 0.1
        heart.step(step)
    assert 3 < read(tmp_path).slowest < 5
    slowest, stepped_at = read(tmp_path).slowest, clock.now
    clock.now += 50
    heart.step(22 + 350)  # told twice: that is no progress
    assert (read(tmp_path).last_sign_at, read(tmp_path).slowest) == (stepped_at, slowest)


def test_death_within_a_change_of_phase_counts_nothing_twice(heart, clock, tmp_path):
    begun(heart)
    clock.now += 5
    heart.enter(Phase.SAVING)
    clock.now += 3
    seen = []

    class Watched(Record):
        def __setattr__(self, name, value):  # the last of three writes
            seen.append(self.seconds(clock.now))
            super().__setattr__(name, value)

    Watched.from_buffer(heart._record).enter(Phase.FIRST_STEP, clock.now)
    seen.append(read(tmp_path).seconds(clock.now))
    assert seen[0] == seen[1]
    assert seen[0][Phase.SAVING] == 3


def test_first_error_counts(heart, tmp_path):
    begun(heart)
    heart.step(21)
    heart.fail(ValueError("bad\nand more"))
    heart.fail(KeyError("later"))
    heart.end("failed")
    record = read(tmp_path)
    assert (record.text("error"), record.text("message"), record.text("how")) == ("ValueError", "bad", "failed")
    assert (record.phase, record.last_phase) == (Phase.ENDED, Phase.TRAINING)
    heart.begin()  # the next training of the process
    heart.fail(OSError("its own"))
    record = read(tmp_path)
    assert (record.text("error"), record.text("message"), record.text("how")) == ("OSError", "its own", "")


def test_folder_that_is_gone_is_a_warning(monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    heart = HeartbeatWriter()
    begun(heart)
    heart.step(1)
    assert "`ckptkit run` cannot follow this process" in caplog.text


def test_file_that_is_no_record_is_none(tmp_path):
    unknown = new_record(bytearray(SIZE_BYTES))
    unknown.phase_number = 77
    assert read_record(tmp_path / "1.heartbeat") is None
    for data in (b"", bytes(SIZE_BYTES), bytes(10), bytes(unknown)):
        (tmp_path / "1.heartbeat").write_bytes(data)
        assert read_record(tmp_path / "1.heartbeat") is None, data[:20]


def test_import_and_use_without_supervisor_change_no_handler(tmp_path, monkeypatch):
    """Neither hooks of exceptions nor handlers of signals: the process is the user's own."""
    code = (
        "import sys, faulthandler, signal\n"
        "import ckptkit as ck\n"
        "from ckptkit.testing.state import NumpyRun\n"
        "run = NumpyRun()\n"
        "with ck.CheckpointManager('root') as manager:\n"
        "    manager.restore(run)\n"
        "    for _ in run.train_until(5): manager.step(run)\n"
        "assert sys.excepthook is sys.__excepthook__ and not faulthandler.is_enabled()\n"
    )
    for name in (VARIABLE, "PYTHONFAULTHANDLER"):
        monkeypatch.delenv(name, raising=False)
    python("-c", code, cwd=tmp_path)


def test_manager_shows_its_commits_and_how_far_a_mirror_is_behind(tmp_path):
    heart_folder = tmp_path / "hearts"
    heart_folder.mkdir()
    code = (
        "import ckptkit as ck\n"
        "from ckptkit.storage import LocalStorage\n"
        "from ckptkit.testing.faults import Fault, FaultyStorage\n"
        "from ckptkit.testing.state import NumpyRun\n"
        "run, bucket = NumpyRun(), FaultyStorage(LocalStorage('bucket'))\n"
        "refused = bucket.inject(Fault('error', operations={'write'}, key='checkpoints/*', times=None))\n"
        "mirror = ck.Mirror(bucket, required=False)\n"
        "with ck.CheckpointManager('root', save=ck.SaveEvery(micro_steps=4), mirror=mirror) as manager:\n"
        "    manager.restore(run)\n"
        "    for _ in run.train_until(5): manager.step(run)\n"
        "    manager.save_final(run)\n"
        "assert refused.fired and manager.mirror_lag == 2\n"
    )
    python("-c", code, cwd=tmp_path, environment={VARIABLE: str(heart_folder)})
    record = read(heart_folder)
    assert (record.micro_step, record.committed_step, record.mirror_lag, record.text("how")) == (5, 5, 2, "finished")
    assert record.phase is Phase.ENDED
    assert 0 < record.committed_seconds <= record.seconds(record.entered_at)[Phase.TRAINING]
    assert record.text("root").endswith("root")


RULE = "-" * 66


def _caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


CATEGORIES = [
    (ValueError("x"), ""),
    (MemoryError(), "out-of-memory"),
    (RuntimeError("std::bad_alloc"), "out-of-memory"),
    (OSError(28, "full"), "disk-full"),
    (_caused(SaveFailedError("x"), _caused(StorageError("y"), OSError(28, "full"))), "disk-full"),
    (_caused(SaveFailedError("x"), StorageError("y")), "storage"),
    (StorageError("y"), "storage"),
    (StaleAttemptError("z"), "overtaken"),
    (ResumeError("other K"), "refused"),
    (TimeoutError(110, "no answer"), "outage"),
    (ConnectionResetError("gone"), "outage"),
    (OSError(116, "stale"), "outage"),
    (FileNotFoundError(2, "no such file"), ""),
    (_caused(ValueError("x"), TimeoutError("y")), "outage"),
    (_caused(circular := ValueError("x"), _caused(KeyError("y"), circular)), ""),
    (RuntimeError(f"x\n{RULE}\n- Python Call Stack: \n{RULE}\nTraceback:\nValueError: y"), "data"),
    (RuntimeError(f"x\n{RULE}\n- Python Call Stack: \n{RULE}\nTraceback:\nTimeoutError: y"), "outage"),
    (RuntimeError(f"x\n{RULE}\n- Python Call Stack: \n{RULE}\nOSError: [Errno 5] Input/output error"), "outage"),
]


def test_error_has_its_category():
    for error, category in CATEGORIES:
        assert category_of(error) == category, error


def test_phases_have_the_same_names_in_events():
    assert [phase.name.lower() for phase in Phase] == list(get_args(PhaseName))
