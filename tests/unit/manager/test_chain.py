"""A root with several mirrors: the newest whole checkpoint of all goes on, and each mirror follows by itself."""

from __future__ import annotations

import logging
import shutil
import threading
from contextlib import suppress
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from support.options import grouped
from support.runs.scenario import CYCLE, attempts, corrupt, digest_at, digest_of, folders, name_at, tree
from unit.manager.test_mirror import LONG, ON_REQUEST, WHEN, OneAtATime, _no_waiting, committed, each  # noqa: F401

from ckptkit.core.worker import NoThreadError
from ckptkit.errors import ResumeError, SaveFailedError, StaleAttemptError, StorageError
from ckptkit.manager import mirrors as module
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Mirror, System
from ckptkit.run import upload
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.faults import Fault, FaultyStorage, Killed
from ckptkit.testing.state import NumpyRun

HOMES = ("memory", "neighbour", "bucket")


class Life:
    """One process of a job with a root and two mirrors; to kill it, drop it.

    Args:
        base: The folder of the homes.
        places: The folder of each home, the root first.
        mirrors: Options of each mirror.
        options: Of the manager.
    """

    def __init__(self, base: Path, *, places=HOMES, mirrors=({}, {}), **options) -> None:
        self.inner = [OneAtATime(base / place) for place in places]
        self.homes = {name: FaultyStorage(one) for name, one in zip(HOMES, self.inner, strict=True)}
        root, *others = self.homes.values()
        self.manager = CheckpointManager(
            root,
            **grouped(**{"save": ON_REQUEST, "keep": KeepLatest(2), **options}),
            mirror=[Mirror(one, **given) for one, given in zip(others, mirrors, strict=True)],
        )
        self.run = NumpyRun(accumulation_steps=CYCLE)

    def restore(self, checkpoint="latest", **options):
        return self.manager.restore(self.run, checkpoint=checkpoint, **options)

    def train(self, batches: int) -> None:
        for _ in self.run.train_until(batches):
            pass

    def saved_at(self, batches: int) -> str:
        """Train up to there, save, and wait for the commit and the uploads, whatever becomes of these."""
        self.train(batches)
        name = self.manager.save(self.run).result()
        self.settle()
        return name

    def settle(self) -> None:
        for one in self.manager._setup.mirrors._uploads:
            one.settle(LONG.total_seconds)

    def away(self, *names: str) -> None:
        for name in names:
            self.homes[name].inject(Fault("error", times=None))

    def still(self) -> None:
        """Wait for the calls of a killed process that were under way."""
        for one in self.inner:
            with one.lock:
                pass


def started(base: Path, *saved_at: int, **options) -> Life:
    life = Life(base, **options)
    life.restore()
    life.settle()
    for batches in saved_at:
        life.saved_at(batches)
    return life


def resumed(base: Path, **options) -> tuple[Life, str | None]:
    """A new start; what it holds is what an uninterrupted run holds there."""
    life = Life(base, **options)
    point = life.restore()
    life.settle()
    assert life.run.digest() == digest_at(point.batches_delivered)
    return life, point.checkpoint


def documents(base: Path, home: str) -> dict[str, bytes]:
    return {key: data for key, data in tree(base / home).items() if key.startswith("attempts/") or key == "run.json"}


def check_all(base: Path, homes=HOMES) -> None:
    """What must be true of all homes after a start that reached them and the first save after it."""
    for home in homes:
        assert documents(base, home) == documents(base, homes[0]), home
        for name in committed(base, home):
            batches = int(name[9:19]) * CYCLE + int(name[21:25])
            assert digest_of(base / home, name) == digest_at(batches), (home, name)


def warnings_in(caplog) -> str:
    return "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)


# What lies where


def test_every_home_holds_the_run(tmp_path):
    life = started(tmp_path, 2, 5)
    life.manager.close()
    check_all(tmp_path)
    for home in HOMES:
        assert committed(tmp_path, home) == [name_at(1, 2), name_at(1, 5)]
    assert life.manager.mirror_lag == 0


def test_each_mirror_keeps_what_it_is_told(tmp_path):
    life = started(tmp_path, 1, 2, 4, 5, 6, mirrors=({}, {"keep": KeepLatest(9)}))
    life.manager.close()
    assert committed(tmp_path, "neighbour") == [name_at(1, 5), name_at(1, 6)]
    assert committed(tmp_path, "bucket") == [name_at(1, at) for at in (1, 2, 4, 5, 6)]


LOST = [lost for lost in product([False, True], repeat=3) if not all(lost)]


@pytest.mark.parametrize(
    "lost", LOST, ids=["-".join(h for h, one in zip(HOMES, lost, strict=True) if one) or "none" for lost in LOST]
)
def test_whatever_homes_are_lost_the_nearest_left_is_read_and_all_get_it_back(tmp_path, lost):
    started(tmp_path, 2, 5).manager.close()
    for home, is_lost in zip(HOMES, lost, strict=True):
        if is_lost:
            shutil.rmtree(tmp_path / home)
    life = Life(tmp_path)
    assert life.restore().checkpoint == name_at(1, 5)
    assert life.run.digest() == digest_at(5)
    nearest = HOMES[lost.index(False)]
    read = [h for h in HOMES if any(c.operation == "read_into" for c in life.homes[h].calls)]
    life.settle()
    assert nearest in read
    for home in HOMES:
        assert name_at(1, 5) in committed(tmp_path, home), home
    assert life.saved_at(6) == name_at(2, 6)
    check_all(tmp_path)
    for home in HOMES:
        assert committed(tmp_path, home)[-2:] == [name_at(1, 5), name_at(2, 6)]


def test_start_reads_the_state_at_the_nearest_home_only(tmp_path):
    started(tmp_path, 2, 5).manager.close()
    shutil.rmtree(tmp_path / "memory")
    life = Life(tmp_path)
    gate = life.homes["bucket"].inject(Fault("error", operations={"read_into"}, times=None))
    assert life.restore().checkpoint == name_at(1, 5)
    life.settle()
    assert gate.fired == 0
    assert committed(tmp_path, "memory") == [name_at(1, 5)]


_SHARD = "checkpoints/*.safetensors"


@pytest.mark.parametrize(
    ("home", "how"),
    [
        ("memory", {"operations": {"write"}, "key": _SHARD, "times": 2}),
        ("memory", {"operations": {"write"}, "key": _SHARD, "nth": 2, "when": "during"}),
        ("memory", {"operations": {"write"}, "key": "*/manifest.json", "when": "after"}),
        ("memory", {"operations": {"create"}, "key": "checkpoints/*/COMMIT", "when": "after"}),
        ("neighbour", {"operations": {"read_into"}, "key": "*/manifest.json", "times": 2}),
    ],
    ids=["before", "during", "after", "commit", "read"],
)
def test_copy_back_goes_on_after_an_error_that_passes(tmp_path, home, how, caplog):
    started(tmp_path, 2, 5).manager.close()
    whole = digest_of(tmp_path / "memory", name_at(1, 5))
    shutil.rmtree(tmp_path / "memory")
    life = Life(tmp_path)
    fault = life.homes[home].inject(Fault("error", **how))
    assert life.restore().checkpoint == name_at(1, 5)
    life.settle()
    assert fault.fired == how.get("times", 1)
    assert committed(tmp_path, "memory") == [name_at(1, 5)]
    assert digest_of(tmp_path / "memory", name_at(1, 5)) == whole
    assert "could not copy" not in warnings_in(caplog)
    life.saved_at(6)
    check_all(tmp_path)


@pytest.mark.parametrize("damaged", ["memory", "neighbour"])
def test_damaged_copy_is_read_at_the_next_home(tmp_path, damaged, caplog):
    started(tmp_path, 2, 5).manager.close()
    if damaged == "neighbour":
        shutil.rmtree(tmp_path / "memory")
    corrupt(tmp_path / damaged, name_at(1, 5))
    assert resumed(tmp_path)[1] == name_at(1, 5)
    assert f"{name_at(1, 5)} is corrupt at {tmp_path / damaged}" in warnings_in(caplog)


# A mirror that is away, slow, or not due


def test_mirror_that_is_not_required_may_be_away(tmp_path, caplog):
    started(tmp_path, 2).manager.close()
    life = Life(tmp_path, mirrors=({"required": False}, {}))
    life.away("neighbour")
    assert life.restore().checkpoint == name_at(1, 2)
    assert f"NO MIRROR: {tmp_path / 'neighbour'}" in warnings_in(caplog)
    life.saved_at(5)
    assert life.manager.mirror_lag == 2
    life.manager.close()
    assert committed(tmp_path, "bucket") == [name_at(1, 2), name_at(2, 5)]
    assert committed(tmp_path, "neighbour") == [name_at(1, 2)]
    # The next start that reaches it brings it up to date.
    life, checkpoint = resumed(tmp_path, mirrors=({"required": False}, {}))
    assert checkpoint == name_at(2, 5)
    life.manager.close()
    assert name_at(2, 5) in committed(tmp_path, "neighbour")
    check_all(tmp_path)


def test_required_mirror_that_is_away_prevents_the_start(tmp_path):
    started(tmp_path, 2).manager.close()
    before = tree(tmp_path)
    life = Life(tmp_path, mirrors=({"required": False}, {}))
    life.away("bucket")
    with pytest.raises(StorageError, match=r"the mirror .*bucket cannot be reached"):
        life.restore()
    assert tree(tmp_path) == before


def test_what_only_a_mirror_that_is_away_has_is_not_set_aside(tmp_path):
    """The machine and its memory are lost, and so is the way to the neighbour, which alone has the newest."""
    life = started(tmp_path, 2, mirrors=({"required": False}, {}))
    life.homes["bucket"].inject(Fault("error", operations={"write"}, times=None))
    life.saved_at(5)
    started(tmp_path, mirrors=({"required": False}, {}))  # its document says that it went on from there
    shutil.rmtree(tmp_path / "memory")
    shutil.rmtree(tmp_path / "bucket" / "checkpoints" / name_at(1, 5), ignore_errors=True)
    before = tree(tmp_path)
    life = Life(tmp_path, mirrors=({"required": False}, {}))
    life.away("neighbour")
    with pytest.raises(StorageError, match=f"continued from {name_at(1, 5)}.*set it aside"):
        life.restore()
    assert tree(tmp_path) == before
    life, checkpoint = resumed(tmp_path, mirrors=({"required": False}, {}))
    assert checkpoint == name_at(1, 5)


def test_stuck_mirror_holds_back_no_other(tmp_path):
    life = Life(tmp_path)
    life.restore()
    life.settle()
    reached, go = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert go.wait(60)

    life.homes["neighbour"].inject(Fault(hold, operations={"write"}))
    life.train(2)
    life.manager.save(life.run).result()
    assert reached.wait(60)
    bucket = life.manager._setup.mirrors._uploads[1]
    for at in (4, 5):
        life.train(at)
        life.manager.save(life.run).result()
        bucket.settle(LONG.total_seconds)
        assert name_at(1, at) in committed(tmp_path, "bucket")
    # What is being uploaded is spared at the root, whatever the policy says.
    assert committed(tmp_path, "memory") == [name_at(1, 2), name_at(1, 4), name_at(1, 5)]
    assert life.manager.mirror_lag == 3
    go.set()
    life.manager.close()
    assert life.manager.mirror_lag == 0
    assert name_at(1, 5) in committed(tmp_path, "neighbour")


def test_pace_of_a_mirror(tmp_path):
    now = [100.0]
    life = Life(
        tmp_path,
        mirrors=({}, {"every": timedelta(minutes=10), "keep": KeepLatest(9)}),
        system=System(monotonic=lambda: now[0]),
    )
    life.restore()
    life.saved_at(1)  # the first one is due at once
    life.saved_at(2)
    now[0] += 599
    life.saved_at(4)
    life.manager.wait()
    assert committed(tmp_path, "bucket") == [name_at(1, 1)]
    assert life.manager.mirror_lag == 2
    now[0] += 1
    life.saved_at(5)
    assert committed(tmp_path, "bucket") == [name_at(1, 1), name_at(1, 5)]
    life.saved_at(6)
    assert committed(tmp_path, "neighbour") == [name_at(1, 5), name_at(1, 6)]
    life.manager.close()  # the last one is never left behind
    assert committed(tmp_path, "bucket")[-1] == name_at(1, 6)


def test_upload_that_failed_is_tried_with_the_next_commit_whatever_the_pace(tmp_path):
    life = Life(tmp_path, mirrors=({}, {"every": timedelta(hours=1)}))
    life.restore()
    failing = life.homes["bucket"].inject(Fault("error", operations={"write"}))
    life.saved_at(1)
    assert failing.fired == 1
    assert committed(tmp_path, "bucket") == []
    life.saved_at(2)
    assert committed(tmp_path, "bucket") == [name_at(1, 2)]


def test_bandwidth_bounds_uploads_until_the_end(tmp_path):
    """A byte a second: no upload would end in this test's life, but the end of the training is not made to wait."""
    life = Life(tmp_path, mirrors=({}, {"bandwidth": 1}))
    life.restore()
    neighbour, bucket = life.manager._setup.mirrors._uploads
    neighbour.settle(LONG.total_seconds)
    bucket.settle(LONG.total_seconds)
    life.train(2)
    life.manager.save(life.run).result()
    neighbour.settle(LONG.total_seconds)
    assert committed(tmp_path, "neighbour") == [name_at(1, 2)]
    assert bucket.is_busy
    assert committed(tmp_path, "bucket") == []
    life.manager.close()
    assert committed(tmp_path, "bucket") == [name_at(1, 2)]


def test_end_waits_for_required_mirrors_only(tmp_path, caplog):
    life = started(tmp_path, 2, mirrors=({"required": False}, {}))
    life.homes["neighbour"].inject(Fault("error", operations={"write"}, times=None))
    life.train(5)
    assert life.manager.save_final(life.run) == name_at(1, 5)
    life.manager.close()
    assert "the mirror is not required" in warnings_in(caplog)
    assert committed(tmp_path, "bucket")[-1] == name_at(1, 5)

    life = started(tmp_path, mirrors=({"required": False}, {}))
    life.homes["bucket"].inject(Fault("error", operations={"write"}, times=None))
    life.train(6)
    with pytest.raises(SaveFailedError, match=r"the mirror .*bucket lacks it"):
        life.manager.save_final(life.run)
    assert committed(tmp_path, "neighbour")[-1] == name_at(2, 6)


# Histories


def test_farthest_mirror_fences_a_job_elsewhere(tmp_path):
    life = started(tmp_path, 2)
    other = started(tmp_path, places=("elsewhere", "other neighbour", "bucket"))
    assert [one.name for one in other.manager.checkpoints()] == [name_at(1, 2)]
    life.train(5)
    life.manager.save(life.run).exception()
    life.settle()
    with pytest.raises(StaleAttemptError):
        life.manager.close()
    assert committed(tmp_path, "bucket") == [name_at(1, 2)]


def test_separate_histories_at_two_mirrors_are_refused(tmp_path):
    """One job went on without the bucket, another one without the neighbour."""
    loose = ({"required": False}, {"required": False})
    started(tmp_path, 2, mirrors=loose).manager.close()
    here = Life(tmp_path, mirrors=loose)
    here.away("bucket")
    here.restore()
    here.saved_at(4)
    shutil.copytree(tmp_path / "bucket", tmp_path / "moved")
    there = Life(tmp_path, places=("elsewhere", "none", "bucket"), mirrors=loose)
    there.away("neighbour")
    there.restore()
    there.saved_at(5)
    before = tree(tmp_path)
    with pytest.raises(ResumeError, match="continued separately"):
        Life(tmp_path, places=("new", "neighbour", "bucket"), mirrors=loose).restore()
    assert tree(tmp_path) == before


def test_two_homes_at_one_place_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"two mirrors are the same place.*another bucket or folder"):
        CheckpointManager(tmp_path / "root", mirror=[tmp_path / "one", tmp_path / "one"])
    with pytest.raises(ValueError, match=r"mirror is the run root itself.*another bucket or folder"):
        CheckpointManager(tmp_path / "root", mirror=[tmp_path / "one", tmp_path / "root"])
    for root, mirror in [("s3://b/x", "s3a://b/x/"), ("memory://x", "memory:///x"), ("memory://a/x", "memory://a//x")]:
        with pytest.raises(ValueError, match="mirror is the run root itself"):
            CheckpointManager(root, mirror=mirror)
    bucket = "s3://bucket/run"
    (tmp_path / "link").symlink_to(tmp_path / "root")
    for root, mirrors in [
        (tmp_path / "root", [tmp_path / "one", tmp_path / "root/copy"]),
        (tmp_path / "root/run", [tmp_path / "root"]),
        (tmp_path / "root", [tmp_path / "one/two", tmp_path / "one"]),
        (tmp_path / "root", [tmp_path / "link/copy"]),
        (tmp_path / "root", [bucket, f"{bucket}/copy"]),
        (bucket, ["s3a://bucket/run/copy"]),
        ("memory:///run", ["memory://run/copy/"]),
    ]:
        with pytest.raises(ValueError, match=r"one lies in the other, .* removes both copies of the run"):
            CheckpointManager(root, mirror=mirrors)
    CheckpointManager(tmp_path / "root", mirror=[tmp_path / "root-copy", bucket, f"{bucket}-2"])
    with pytest.raises(ValueError, match="every must not be negative"):
        Mirror(tmp_path / "one", every=timedelta(seconds=-1))
    with pytest.raises(ValueError, match="bandwidth must be at least 1"):
        Mirror(tmp_path / "one", bandwidth=0)
    with pytest.raises(TypeError, match="every must be a timedelta"):
        Mirror(tmp_path / "one", every=10)


# A death or an error at every call


MOMENTS = [
    *(("memory", when, "kill") for when in WHEN),
    *((home, when, action) for home in HOMES[1:] for action in ("kill", "error") for when in WHEN),
]
at_every_moment = pytest.mark.parametrize(("home", "when", "action"), MOMENTS, ids=[" ".join(one) for one in MOMENTS])


def strike(life: Life, home: str, action: str, nth: int, when: str) -> Fault:
    """An error of one home, or the death of the process, which no home hears of again."""

    def die() -> None:
        for one in life.homes.values():
            one._dead = True
        raise Killed(f"killed at call {nth} of {home}")

    return life.homes[home].inject(Fault(die if action == "kill" else "error", nth=nth, when=when))


def history(base: Path) -> None:
    """All have 4; 7 is at the root and the neighbour, and half of it at the bucket; then the root is lost."""
    life = started(base, 2, 4)
    life.homes["bucket"].inject(Fault("kill", operations={"write"}, key=f"checkpoints/{name_at(1, 7)}/*", nth=2))
    life.saved_at(7)
    shutil.rmtree(base / "memory")
    assert committed(base, "neighbour") == [name_at(1, 4), name_at(1, 7)]
    assert folders(tree(base / "bucket")).uncommitted == [name_at(1, 7)]


SAVES = (8, 10)


class NoThread:
    """Stands for `ckptkit.core.worker.Worker` where none can be started: the caller uploads, in one order."""

    is_lost = False

    def __init__(self, *arguments, **options) -> None:
        pass

    def start(self) -> None:
        raise NoThreadError

    def take_back(self) -> bool:
        return True


@pytest.fixture
def one_thread(monkeypatch):
    """Else it would depend on which upload comes first what the n-th call is."""
    monkeypatch.setattr(module, "Worker", NoThread)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    base = tmp_path_factory.mktemp("template")
    history(base)
    return base


def go_on(base: Path, newest: str) -> None:
    """A new start takes the newest checkpoint, and all homes are one run again after it."""
    assert any(newest in committed(base, home) for home in HOMES)
    life, checkpoint = resumed(base)
    assert checkpoint == newest
    for home in HOMES[1:]:
        assert newest in committed(base, home), home
    at = life.run.batches
    life.saved_at(at + 1)
    check_all(base)
    for home in HOMES:
        own = max(attempts(tree(base / home)))
        assert committed(base, home)[-1] == name_at(own, at + 1), home
    life.manager.close()


@pytest.mark.covering(1)
@pytest.mark.usefixtures("one_thread")
@at_every_moment
def test_fault_at_any_start_call_is_recovered(tmp_path, template, home, when, action):
    shutil.copytree(template, tmp_path / "counted")
    life = started(tmp_path / "counted")
    for what, nth in each(life.homes[home].calls, when):
        base = tmp_path / str(nth)
        shutil.copytree(template, base)
        struck = Life(base)
        fault = strike(struck, home, action, nth, when)
        with suppress(Killed, StorageError):
            struck.restore()
            struck.settle()
        struck.still()
        assert fault.fired == 1, what
        try:
            go_on(base, name_at(1, 7))
        except AssertionError as error:
            raise AssertionError(f"with the fault at {what}: {error}") from error
        shutil.rmtree(base)


@pytest.mark.covering(1)
@pytest.mark.usefixtures("one_thread")
@at_every_moment
def test_fault_at_any_upload_call_loses_nothing(tmp_path, template, home, when, action):
    shutil.copytree(template, tmp_path / "counted")
    life = started(tmp_path / "counted")
    before = len(life.homes[home].calls)
    for batches in SAVES:
        life.saved_at(batches)
    for what, nth in each(life.homes[home].calls[before:], when):
        base = tmp_path / str(nth)
        shutil.copytree(template, base)
        struck = started(base)
        fault = strike(struck, home, action, nth, when)
        done = [name_at(1, 7)]
        with suppress(Killed, StorageError):
            for batches in SAVES:
                done.append(struck.saved_at(batches))
        struck.still()
        assert fault.fired == 1, what
        newest = max([*done, *committed(base, "memory")])  # a save whose reply was lost may be there as well
        if action == "error":
            assert done[1:] == [name_at(2, at) for at in SAVES]
        try:
            go_on(base, newest)
        except AssertionError as error:
            raise AssertionError(f"with the fault at {what}: {error}") from error
        shutil.rmtree(base)


def test_mirror_that_fails_once_the_attempt_is_open_does_not_end_the_start(tmp_path):
    started(tmp_path, 2, 5).manager.close()
    shutil.rmtree(tmp_path / "memory")
    commit = f"checkpoints/{name_at(1, 5)}/COMMIT"
    life = Life(tmp_path)
    begin = life.manager._setup.mirrors.begin

    def failing(*arguments) -> None:
        faults.append(life.homes["neighbour"].inject(Fault("error", operations={"read"}, key=commit)))
        begin(*arguments)

    faults: list[Fault] = []
    life.manager._setup.mirrors.begin = failing
    assert life.restore().checkpoint == name_at(1, 5)
    assert faults[0].fired == 1
    life.settle()
    assert life.saved_at(6) == name_at(2, 6)


# What one home has to do with another


@pytest.mark.parametrize("on_error", ["warn", "raise"])
@pytest.mark.parametrize("damaged", ["memory", "neighbour"])
def test_damaged_home_keeps_no_other_from_what_it_lacks(tmp_path, damaged, on_error):
    """The root's copy is damaged and the neighbour is new; or the root is lost and the neighbour's copy damaged."""
    started(tmp_path, 2, 5).manager.close()
    other = "neighbour" if damaged == "memory" else "memory"
    shutil.rmtree(tmp_path / other)
    corrupt(tmp_path / damaged, name_at(1, 5), *(["manifest.json"] if damaged == "neighbour" else []))
    life = Life(tmp_path, on_save_error=on_error)
    assert life.restore().checkpoint == name_at(1, 5)
    life.settle()
    life.train(6)
    life.manager.step(life.run)  # raises nothing
    if other == "neighbour":
        assert name_at(1, 5) in committed(tmp_path, "neighbour")
        assert digest_of(tmp_path / "neighbour", name_at(1, 5)) == digest_at(5)
    assert life.saved_at(7) == name_at(2, 7)
    for home in HOMES:
        assert name_at(2, 7) in committed(tmp_path, home)


def hold(life: Life, home: str) -> threading.Event:
    """Let all writes at a home wait."""
    go = threading.Event()
    life.homes[home].inject(Fault(lambda: go.wait(60), operations={"write"}, times=None))
    return go


def test_stuck_mirror_that_is_not_required_does_not_hold_up_the_end(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(module, "OPTIONAL_PATIENCE", timedelta(seconds=0.2))
    life = Life(tmp_path, mirrors=({"required": False}, {"every": timedelta(hours=1)}))
    life.restore()
    life.saved_at(2)
    go = hold(life, "neighbour")
    life.train(5)
    life.manager.save(life.run).result()
    assert name_at(1, 5) not in committed(tmp_path, "bucket")
    life.manager.close(timedelta(seconds=30))
    assert name_at(1, 5) in committed(tmp_path, "bucket")
    assert "the mirror is not required" in warnings_in(caplog)
    go.set()
    life.settle()


def test_end_begins_all_uploads_before_it_waits_for_one(tmp_path):
    life = Life(tmp_path, mirrors=({}, {"every": timedelta(hours=1)}))
    life.restore()
    life.saved_at(2)
    go = hold(life, "neighbour")
    life.train(5)
    life.manager.save(life.run).result()
    with pytest.raises(TimeoutError):
        life.manager.close(timedelta(seconds=0.2))
    life.manager._setup.mirrors._uploads[1].settle(LONG.total_seconds)
    assert name_at(1, 5) in committed(tmp_path, "bucket")
    go.set()
    life.settle()


def test_bound_holds_again_after_a_final_save_that_was_not_the_last(tmp_path):
    life = Life(tmp_path, mirrors=({}, {"bandwidth": 1}))
    life.restore()
    life.train(2)
    life.manager.save_final(life.run)
    assert committed(tmp_path, "bucket") == [name_at(1, 2)]
    life.train(5)
    life.manager.save(life.run).result()
    assert life.manager._setup.mirrors._uploads[1].is_busy
    assert name_at(1, 5) not in committed(tmp_path, "bucket")
    life.manager.close()


class NoRoom:
    def expect(self, needed_bytes, what):
        raise StorageError(f"there is no room for {what}")


def test_copy_back_to_a_root_in_memory_asks_for_room(tmp_path, monkeypatch, caplog):
    started(tmp_path, 2, 5).manager.close()
    shutil.rmtree(tmp_path / "memory")
    monkeypatch.setattr(upload, "room_of", lambda storage, folder: NoRoom())
    life, checkpoint = resumed(tmp_path)
    assert checkpoint == name_at(1, 5)
    assert "there is no room for" in warnings_in(caplog)
    assert not [
        key
        for key in tree(tmp_path / "memory")
        if key.startswith(("checkpoints/", "frozen/")) and not key.endswith("COMMIT")
    ]
    assert life.saved_at(6) == name_at(2, 6)


def test_copy_back_that_fails_leaves_nothing(tmp_path, caplog):
    started(tmp_path, 2, 5).manager.close()
    shutil.rmtree(tmp_path / "memory")
    life = Life(tmp_path)
    failed = life.homes["memory"].inject(Fault("error", operations={"write"}, nth=2, times=3))
    assert life.restore().checkpoint == name_at(1, 5)
    life.settle()
    assert failed.fired == 3
    assert f"could not copy {name_at(1, 5)} back to {tmp_path / 'memory'}" in warnings_in(caplog)
    assert not [
        key
        for key in tree(tmp_path / "memory")
        if key.startswith(("checkpoints/", "frozen/")) and not key.endswith("COMMIT")
    ]
    assert life.saved_at(6) == name_at(2, 6)
    check_all(tmp_path)
