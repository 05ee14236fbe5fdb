"""A run root in memory that fills: what does not fit is not begun, and room is made by what may go."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from support.room import CountedRoom, install, small_tmpfs
from support.runs.ranks import check_whole, digests_at, job
from support.runs.ranks import committed as committed_by_ranks
from support.runs.scenario import Life, check_new_start, committed, digest_at, digest_of, folders, name_at, tree
from support.thread_ranks import results_of

from ckptkit.checkpoint.write import needed_bytes
from ckptkit.errors import StaleAttemptError, StorageError
from ckptkit.format.events import Removed
from ckptkit.manager import run as live_run
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Mirror, Saving
from ckptkit.run import saver
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepEvery, KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.storage.capacity import NO_LIMIT, Limit, in_pages
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

PAGE = in_pages(1)
PLENTY = 1 << 30
NO_ROOM = Limit(0, PLENTY, "a test", errno.ENOSPC)


@pytest.fixture
def room(root: Path, monkeypatch: pytest.MonkeyPatch) -> CountedRoom:
    counted = CountedRoom(root, PLENTY)
    install(monkeypatch, counted)
    monkeypatch.setattr(
        saver, "needed_bytes", lambda *given: counted.needed.append(needed_bytes(*given)) or counted.needed[-1]
    )
    return counted


def mirrored(root: Path, *saves_at: int, required: bool = True) -> tuple[FaultyStorage, Callable]:
    """Begin a life with a mirror; return that, and a function that saves and waits for the upload."""
    storage = FaultyStorage(LocalStorage(root.parent / "mirror"))
    mirror = Mirror(storage, keep=KeepLatest(100), required=required)
    manager = CheckpointManager(root, keep=KeepLatest(100), mirror=mirror, saving=Saving(on_error="warn"))
    run = NumpyRun(accumulation_steps=4)
    manager.restore(run)

    def save_at(batches: int):
        for _ in run.train_until(batches):
            pass
        handle = manager.save(run)
        handle.exception()
        manager.wait()
        return handle

    for at in saves_at:
        save_at(at).result()
    return storage, save_at


def begun(root: Path, *saves_at: int, keep: object = None) -> Life:
    life = Life(root, keep=keep or KeepLatest(100))
    life.restore()
    for at in saves_at:
        life.saved_at(at)
    return life


def names(*batches: int) -> list[str]:
    return [name_at(1, at) for at in batches]


def size_of(root: Path, name: str) -> int:
    return sum(in_pages(path.stat().st_size) for path in (root / "checkpoints" / name).rglob("*") if path.is_file())


def test_refused_save_leaves_nothing_and_earlier_restore(root: Path, room: CountedRoom) -> None:
    life = begun(root, 2, 4)
    room.total_bytes = room.used_bytes + PAGE
    before = tree(root)
    error = life.save_at(6).exception()
    assert isinstance(error, StorageError)
    assert name_at(1, 6) in str(error)
    assert tree(root) == before
    assert digest_of(root, name_at(1, 4)) == digest_at(4)
    room.total_bytes = PLENTY
    assert life.saved_at(6) == name_at(1, 6)  # the name was never used
    check_new_start(root, latest=name_at(1, 6))


def test_what_is_needed_is_what_a_save_takes(root: Path, room: CountedRoom) -> None:
    life = begun(root)
    room.total_bytes = 0
    assert life.save_at(2).exception() is not None
    needed, used = room.needed[0], room.used_bytes
    room.total_bytes = used + needed - 1
    assert life.save_at(2).exception() is not None
    room.total_bytes = used + needed
    life.saved_at(2)
    assert needed - 3 * PAGE <= room.used_bytes - used <= needed


def test_what_policy_does_not_want_goes_first(root: Path, room: CountedRoom) -> None:
    """Three are there that the policy of this start does not want; no more of them go than is needed."""
    life = begun(root, 2, 4, 6, 8)
    calls = life.calls_of(lambda: life.saved_at(10))
    assert not [call for call in calls if call.operation == "delete"]  # there is room
    life = begun(root, keep=KeepLatest(2))
    room.total_bytes = room.used_bytes + size_of(root, name_at(1, 2)) + PAGE
    seen: list[list[str]] = []
    life.storage.inject(
        Fault(lambda: seen.append(committed(root)), operations={"write"}, key="*weights-000.safetensors")
    )
    life.saved_at(12)
    assert seen == [names(4, 6, 8, 10)]
    assert committed(root) == [name_at(1, 10), name_at(2, 12)]  # what retention leaves
    life.saved_at(14)
    life.manager.close()
    files = read_events(LocalStorage(root), Index(LocalStorage(root)))
    events = [event for segment in files.segments for event in segment.events]
    assert [event.checkpoint for event in events if isinstance(event, Removed)] == names(2, 4, 6, 8, 10)


@pytest.mark.parametrize("keep", [KeepLatest(100), KeepEvery(1)])
def test_only_here_stays_whatever_does_not_fit(root: Path, room: CountedRoom, keep) -> None:
    life = begun(root, 4, 8, 12, 16, keep=keep)
    room.total_bytes = room.used_bytes
    assert life.save_at(20).exception() is not None
    assert committed(root) == names(4, 8, 12, 16)


def test_the_mirrored_go_down_to_the_newest(root: Path, room: CountedRoom) -> None:
    _, save_at = mirrored(root, 2, 4)
    room.total_bytes = room.used_bytes + room.needed[-1] - size_of(root, name_at(1, 2)) + 4 * PAGE
    for batches in (6, 8, 10):
        save_at(batches).result()
        assert name_at(1, batches) in committed(root)
        assert len(committed(root)) <= 2
    there = sum(size_of(root, name) for name in committed(root))
    room.total_bytes = room.used_bytes - there + room.needed[-1] + PAGE  # enough if the newest went, too
    assert save_at(12).exception() is not None
    assert digest_of(root, name_at(1, 10)) == digest_at(10)


@pytest.mark.parametrize("why", ["all would not be enough", "not required", "it does not answer"])
def test_mirror_may_free_nothing(root: Path, room: CountedRoom, why: str) -> None:
    mirror, save_at = mirrored(root, 2, 4, 6, required=why != "not required")
    room.total_bytes = PAGE if why == "all would not be enough" else room.used_bytes + PAGE
    if why == "it does not answer":
        mirror.inject(Fault("error", operations={"read"}, key="checkpoints/*", times=None))
    assert save_at(8).exception() is not None
    assert committed(root) == names(2, 4, 6)


@pytest.mark.parametrize("is_gone_there", [False, True])
def test_removed_at_the_mirror_stays_here(root: Path, room: CountedRoom, is_gone_there: bool) -> None:
    """The mirrored go oldest first; one that was uploaded, and that somebody removed there, is the last copy."""
    _, save_at = mirrored(root, 2, 4, 6, 8)
    if is_gone_there:
        (root.parent / "mirror/checkpoints" / name_at(1, 2) / "COMMIT").unlink()
    room.total_bytes = room.used_bytes + PAGE
    save_at(10).result()
    assert committed(root) == (names(2, 8, 10) if is_gone_there else names(6, 8, 10))  # one is less than is asked for


@pytest.mark.parametrize("removed", [0, 1])
def test_fence_is_checked_before_each_removal(root: Path, room: CountedRoom, removed: int) -> None:
    begun(root, 2, 4, 6, 8)
    life = begun(root, keep=KeepLatest(2))
    room.total_bytes = room.used_bytes + room.needed[-1] - 2 * size_of(root, name_at(1, 2)) + 3 * PAGE  # two would go
    place = [
        {"operations": {"walk"}},
        {"operations": {"delete"}, "key": f"*{name_at(1, 2)}/COMMIT", "when": "after"},
    ][removed]
    fault = life.storage.inject(Fault(Life(root, keep=KeepLatest(100)).restore, **place))
    assert isinstance(life.save_at(10).exception(), StaleAttemptError)
    assert fault.fired == 1
    assert committed(root) == names(2, 4, 6, 8)[removed:]


@pytest.mark.parametrize("full", [0, 1])
def test_rank_without_room_fails_the_save_of_all(
    tmp_path: Path, full: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is committed, nothing stays, and both ranks go on; later there is room."""
    refusals = [NO_ROOM] * (1 if full else 4)  # rank 0 asks again while it makes room

    new = live_run._new_saver

    def new_saver(setup, opened, rank_sync, patience):
        made = new(setup, opened, rank_sync, patience)
        if rank_sync.rank == full:
            made._room = lambda: refusals.pop() if refusals else NO_LIMIT
        return made

    monkeypatch.setattr(live_run, "_new_saver", new_saver)
    lives = results_of(job(tmp_path, 2, 13, every=2))
    assert "has no room for it" in caplog.text
    there = committed_by_ranks(tmp_path)
    assert there[-1] == "a000001-c0000000003-m0000"
    for name in there:
        check_whole(tmp_path, name, 2)
    assert tuple(item.digest for item in lives) == digests_at(2, 13)
    failed = tmp_path / "checkpoints" / "a000001-c0000000000-m0002"
    assert [item.name for item in failed.iterdir()] == ["COMMIT"]
    assert folders({f"checkpoints/{failed.name}/COMMIT": (failed / "COMMIT").read_bytes()}).void


def test_real_tmpfs_refuses_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's own numbers where this user may mount one, and with counted ones elsewhere."""
    with small_tmpfs(tmp_path / "small", "4m") as mounted:
        root = tmp_path / "small" / "run"
        if not mounted:
            install(monkeypatch, CountedRoom(root, 4 << 20))
        manager = CheckpointManager(root, keep=KeepLatest(100), saving=Saving(on_error="warn"))
        run = NumpyRun(accumulation_steps=4, size=80_000)  # 0.96 MB of tensors in a checkpoint, and 0.32 frozen
        manager.restore(run)
        saved = []
        for _ in run.train_until(8):
            handle = manager.save(run)
            if handle.exception() is not None:
                break
            saved.append(handle.result())
        error = handle.exception()
        assert isinstance(error, StorageError)
        assert "No space left" not in str(error)  # it was known before the first byte
        assert "of 4 MiB are free" in str(error)
        assert len(saved) >= 2
        assert committed(root) == saved
        assert folders(tree(root)).uncommitted == folders(tree(root)).void == []
        new = NumpyRun(accumulation_steps=4, size=80_000)
        assert CheckpointManager(root).restore(new).checkpoint == saved[-1]
