"""A root with several mirrors: the newest whole checkpoint of all goes on, and each mirror follows by itself."""

import errno
import shutil
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from support.runs.scenario import digest_at, digest_of, folders, name_at, tree
from unit.manager import test_mirror as mirror
from unit.manager.test_mirror import LONG, Homed, _no_waiting, check_homes, committed, strike_each_call, warnings_in  # noqa: F401

from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.errors import SaveFailedError, StorageError
from ckptkit.manager import mirrors
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Mirror
from ckptkit.run import upload
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage.capacity import Limit
from ckptkit.testing.faults import Fault

HOMES = ("memory", "neighbour", "bucket")


class Life(Homed):
    """Of a job with a root in memory and two mirrors."""

    def __init__(self, base: Path, *, places=HOMES, mirrors=({}, {}), **options) -> None:
        super().__init__(base, dict(zip(HOMES, places, strict=True)), mirrors, **options)


started, resumed = partial(mirror.started, kind=Life), partial(mirror.resumed, kind=Life)


@pytest.mark.parametrize("lost", [("memory",), ("memory", "neighbour"), ("neighbour", "bucket")], ids="-".join)
def test_whatever_homes_are_lost_the_nearest_left_is_read_and_all_get_it_back(tmp_path, lost):
    started(tmp_path, 2, 5).manager.close()
    for home in lost:
        shutil.rmtree(tmp_path / home)
    life = Life(tmp_path)
    nearest, *farther = [home for home in HOMES if home not in lost]
    unread = [life.homes[home].inject(Fault("error", operations={"read_into"}, times=None)) for home in farther]
    assert life.restore().checkpoint == name_at(1, 5)
    assert life.run.digest() == digest_at(5)
    assert any(call.operation == "read_into" for call in life.homes[nearest].calls)
    life.settle()
    assert [fault.fired for fault in unread] == [0] * len(unread)
    assert [home for home in HOMES if name_at(1, 5) not in committed(tmp_path, home)] == []
    assert life.saved_at(6) == name_at(2, 6)
    check_homes(tmp_path, *HOMES)
    for home in HOMES:
        assert committed(tmp_path, home)[-2:] == [name_at(1, 5), name_at(2, 6)]


SHARD = "checkpoints/*.safetensors"


@pytest.mark.parametrize(
    ("home", "how"),
    [
        ("memory", {"operations": {"write"}, "key": SHARD, "times": 2}),
        ("memory", {"operations": {"write"}, "key": SHARD, "nth": 2, "when": "during"}),
        ("memory", {"operations": {"create"}, "key": "checkpoints/*/COMMIT", "when": "after"}),
        ("neighbour", {"operations": {"read_into"}, "key": "*/manifest.json", "times": 2}),
    ],
    ids=["before", "during", "commit", "read"],
)
def test_copy_back_goes_on_after_an_error_that_passes(tmp_path, home, how, caplog):
    started(tmp_path, 2, 5).manager.close()
    shutil.rmtree(tmp_path / "memory")
    life = Life(tmp_path)
    fault = life.homes[home].inject(Fault("error", **how))
    assert life.restore().checkpoint == name_at(1, 5)
    life.settle()
    assert fault.fired == how.get("times", 1)
    assert committed(tmp_path, "memory") == [name_at(1, 5)]
    assert digest_of(tmp_path / "memory", name_at(1, 5)) == digest_at(5)
    assert "could not copy" not in warnings_in(caplog)


def test_a_full_mirror_does_not_keep_the_root_from_a_farther_one(tmp_path):
    started(tmp_path, 2, 5).manager.close()
    shutil.rmtree(tmp_path / "memory")
    shutil.rmtree(tmp_path / "neighbour")
    life = Life(tmp_path)
    life.homes["neighbour"].inject(Fault("error", operations={"write"}, times=None))
    assert life.restore().checkpoint == name_at(1, 5)
    life.settle()
    assert committed(tmp_path, "memory") == [name_at(1, 5)]


def test_mirror_that_is_not_required_may_be_away(tmp_path, caplog):
    loose = ({"required": False}, {})
    started(tmp_path, 2).manager.close()
    life = Life(tmp_path, mirrors=loose)
    # A folder can be probed whatever has become of its disk.
    life.homes["neighbour"].inject(Fault("error", operations={"list"}, times=None))
    assert life.restore().checkpoint == name_at(1, 2)
    assert f"NO MIRROR: {tmp_path / 'neighbour'}" in warnings_in(caplog)
    life.saved_at(5)
    assert life.manager.mirror_lag == 2
    life.manager.close()
    assert committed(tmp_path, "bucket") == [name_at(1, 2), name_at(2, 5)]
    assert committed(tmp_path, "neighbour") == [name_at(1, 2)]
    # The next start that reaches it brings it up to date.
    life, checkpoint = resumed(tmp_path, mirrors=loose)
    assert checkpoint == name_at(2, 5)
    life.manager.close()
    assert name_at(2, 5) in committed(tmp_path, "neighbour")
    check_homes(tmp_path, *HOMES)


@pytest.mark.parametrize("required", [True, False])
def test_stuck_mirror_does_not_hold_up_the_end_of_others(tmp_path, caplog, monkeypatch, required):
    """Nor the end of the training, if it is not required."""
    monkeypatch.setattr(mirrors, "OPTIONAL_PATIENCE", timedelta(seconds=0.2))
    life = started(tmp_path, 2, mirrors=({"required": required}, {"every": timedelta(hours=1)}))
    pause = life.held_at("neighbour", 5)
    assert name_at(1, 5) not in committed(tmp_path, "bucket")
    with pytest.raises(TimeoutError) if required else nullcontext():
        life.manager.close(timedelta(seconds=0.2 if required else 30))
    life.uploads[1].settle(LONG.total_seconds)
    assert name_at(1, 5) in committed(tmp_path, "bucket")
    assert ("the mirror is not required" in warnings_in(caplog)) == (not required)
    pause.let_go()
    life.settle()


def test_pace_of_a_mirror(tmp_path):
    now = [100.0]
    paced = {"mirrors": ({}, {"every": timedelta(minutes=10), "keep": KeepLatest(9)}), "monotonic": lambda: now[0]}
    life = Life(tmp_path, **paced)
    life.restore()
    failing = life.homes["bucket"].inject(Fault("error", operations={"write"}))
    life.saved_at(0)
    assert failing.fired == 1
    assert committed(tmp_path, "bucket") == []
    life.saved_at(1)  # after a failure it is due at once
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
    life = started(tmp_path, 7, on_save_error="raise", **paced)
    life.homes["memory"].inject(Fault("error", operations={"write"}, times=None))
    life.save_at(8)
    with pytest.raises(SaveFailedError, match="background save failed"):
        life.manager.close()  # nor is it if the save after it fails
    life.settle()
    assert committed(tmp_path, "bucket")[-1] == name_at(2, 7)


def test_bandwidth_bounds_uploads_until_the_end(tmp_path):
    """A byte a second: no upload would end in this test's life, but the end of the training is not made to wait."""
    life = started(tmp_path, mirrors=({}, {"bandwidth": 1}))
    neighbour, bucket = life.uploads
    neighbour.settle(LONG.total_seconds)
    bucket.settle(LONG.total_seconds)
    life.train(2)
    life.manager.save(life.run).result()
    neighbour.settle(LONG.total_seconds)
    assert committed(tmp_path, "neighbour") == [name_at(1, 2)]
    assert not bucket.may_begin
    assert committed(tmp_path, "bucket") == []
    life.manager.save_final(life.run)
    assert committed(tmp_path, "bucket") == [name_at(1, 2)]
    life.train(5)  # it was not the end, so that the bound holds again
    life.manager.save(life.run).result()
    assert not bucket.may_begin
    assert name_at(1, 5) not in committed(tmp_path, "bucket")
    life.manager.close()


def test_two_homes_at_one_place_are_refused(tmp_path):
    root, one, bucket = tmp_path / "root", tmp_path / "one", "s3://bucket/run"
    (tmp_path / "link").symlink_to(root)
    for first, others in [
        (root, [one, one]),
        (root, [one, root]),
        (tmp_path / "root/../link", root),
        ("s3://b/x", "s3a://b/x/"),
        (root, [one, root / "copy"]),
        (root / "run", [root]),
        (root, [one / "two", one]),
        (root, [bucket, f"{bucket}/copy"]),
    ]:
        with pytest.raises(ValueError, match=r"no second copy of the run.*another bucket or folder"):
            CheckpointManager(first, mirror=others)
    assert CheckpointManager(root, mirror=[tmp_path / "root-copy", bucket, f"{bucket}-2"]).mirror_lag == 0
    for option, value, error in [
        ("every", timedelta(seconds=-1), ValueError),
        ("every", 10, TypeError),
        ("bandwidth", 0, ValueError),
        ("keep", 3, ValueError),
        ("storage_options", {"key": "x"}, StorageError),
    ]:
        with pytest.raises(error, match=option):
            Mirror(one, **{option: value})


class NoThread(Worker):
    """Cannot be started: the caller uploads, in one order."""

    def start(self) -> None:
        raise NoThreadError


@pytest.fixture
def one_thread(monkeypatch):
    """Else it would depend on which upload comes first what the n-th call is."""
    monkeypatch.setattr(mirrors, "Worker", NoThread)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """All have 4; 7 is at the root and the neighbour, and half of it at the bucket; then the root is lost."""
    base = tmp_path_factory.mktemp("template")
    life = started(base, 2, 4)
    life.homes["bucket"].inject(Fault("kill", operations={"write"}, key=f"checkpoints/{name_at(1, 7)}/*", nth=2))
    life.saved_at(7)
    shutil.rmtree(base / "memory")
    assert committed(base, "neighbour") == [name_at(1, 4), name_at(1, 7)]
    assert folders(tree(base / "bucket")).uncommitted == [name_at(1, 7)]
    return base


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("home", HOMES)
def test_fault_at_any_start_call_is_recovered(tmp_path, template, home):
    strike_each_call(tmp_path, template, Life, home)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("home", HOMES)
def test_fault_at_any_upload_call_loses_nothing(tmp_path, template, home):
    strike_each_call(tmp_path, template, Life, home, 8)


@pytest.mark.parametrize("full", [True, False])
def test_copy_back_that_fails_leaves_nothing(tmp_path, monkeypatch, caplog, full):
    """A root in memory is asked for room first."""
    started(tmp_path, 2, 5).manager.close()
    shutil.rmtree(tmp_path / "memory")
    if full:
        monkeypatch.setattr(upload, "limit_at", lambda storage, folder: Limit(0, 0, "a test", errno.ENOSPC))
    life = Life(tmp_path)
    failed = life.homes["memory"].inject(Fault("error", operations={"write"}, key="*/rank-00000.json", times=3))
    assert life.restore().checkpoint == name_at(1, 5)
    life.settle()
    assert failed.fired == (0 if full else 3)
    assert f"could not copy {name_at(1, 5)} back to {tmp_path / 'memory'}" in warnings_in(caplog)
    assert ("has no room for it" in warnings_in(caplog)) == full
    left = [key for key in tree(tmp_path / "memory") if key.startswith(("checkpoints/", "frozen/"))]
    assert [key for key in left if not key.endswith("COMMIT")] == []
    life.homes["memory"].clear()
    assert life.saved_at(6) == name_at(2, 6)
    check_homes(tmp_path, *HOMES)
