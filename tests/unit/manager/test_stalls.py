"""A storage stalls, fails or dies at any point while training goes on: what is committed is the moment of the save."""

from __future__ import annotations

import errno
import fnmatch
import json
import os
import threading
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from support.clock import clock_of_calls
from support.live import LONG_SECONDS, Stall
from support.options import grouped
from support.process import python
from support.runs.grown import ON_REQUEST, opened

from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Capture
from ckptkit.core.save_policy import SaveEvery
from ckptkit.core.tensors import leaf_of
from ckptkit.core.worker import Worker
from ckptkit.errors import SaveFailedError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.manager.writer import SaveHandle
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.snapshot import StagingArea
from ckptkit.snapshot.window import CopyAhead, WindowPace
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

SMALL = 20_011  # elements, so that a leaf takes several of the small buffers
SMALL_BUFFER_BYTES = 16 << 10
LARGE = 700_001  # elements: files that are written directly
windows = pytest.mark.parametrize("window", ["auto", "slice", "off"])
# Micro-steps at the save, and K.
places = pytest.mark.parametrize(("at", "k"), [(3, 1), (4, 4), (6, 4)], ids=["K1", "boundary", "mid-cycle"])


@pytest.fixture
def _small_buffers(monkeypatch):
    for module in ("buffers", "staging", "window"):
        monkeypatch.setattr(f"ckptkit.snapshot.{module}.BUFFER_BYTES", SMALL_BUFFER_BYTES)


class Streams(LocalStorage):
    """A local root on which one file's stream stalls right before its byte ``at_bytes``."""

    def __init__(self, root, key: str, share: float, stall: Stall) -> None:
        super().__init__(root)
        self._key = key
        self._share = share
        self._stall = stall

    def write(self, key, stream, size_bytes) -> None:
        if fnmatch.fnmatchcase(key, self._key) and not self._stall.reached.is_set():
            stream = Stalling(stream, int(self._share * size_bytes), self._stall)
        super().write(key, stream, size_bytes)


class Stalling:
    def __init__(self, inner, left_bytes: int, stall: Stall) -> None:
        self._inner = inner
        self._left_bytes = left_bytes
        self._stall = stall

    def readinto(self, buffer, /) -> int:
        if self._left_bytes >= len(buffer):
            self._left_bytes -= len(buffer)
            return self._inner.readinto(buffer)
        first = self._inner.readinto(buffer[: self._left_bytes])
        self._left_bytes = 1 << 60
        self._stall()
        return first + self._inner.readinto(buffer[first:])


def begun(storage, k, at, *, size=SMALL, **options) -> tuple[CheckpointManager, NumpyRun]:
    """A manager and its run after ``at`` micro-steps, with nothing saved yet."""
    run = NumpyRun(accumulation_steps=k, size=size)
    defaults = {"save": ON_REQUEST, "keep": KeepLatest(100), "monotonic": clock_of_calls()}
    manager = CheckpointManager(storage, **grouped(**{**defaults, **options}))
    manager.restore(run)
    go_on(manager, run, at)
    return manager, run


def go_on(manager, run, micro_steps) -> None:
    for _ in run.train_until(run.batches + micro_steps):
        manager.step(run)


def assert_restores(root, name, digest, k, size=SMALL) -> None:
    found = NumpyRun(seed=99, accumulation_steps=k, size=size)
    found.embedding[:] = -1
    CheckpointManager(root).restore(found, checkpoint=name, rewind=True)
    assert found.digest() == digest


def through_a_stall(manager, run, stall, k) -> tuple[str, str]:
    """Save, train on while the storage stalls, let it go; the checkpoint's name and the digest that it must have."""
    digest = run.digest()
    handle = manager.save(run)
    go_on(manager, run, k + 1)  # through an update: with slices it is this that lets the writer get anywhere
    assert stall.reached.wait(LONG_SECONDS)
    assert not handle.done()
    go_on(manager, run, k)  # and through another
    stall.let_go()
    return handle.result(), digest


def calls_of_a_save(root, k, at, saves) -> int:
    """How many calls the storage gets from the save number ``saves``."""
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, k, at)
    for _ in range(saves - 1):
        manager.save(run).result()
        go_on(manager, run, k)
    before = len(storage.calls)
    manager.save(run).result()
    return len(storage.calls) - before


# At any point


@pytest.mark.covering(2)
@windows
@places
@pytest.mark.parametrize("saves", [1, 2])
@pytest.mark.usefixtures("_small_buffers")
def test_stall_at_any_save_call_tears_nothing(tmp_path, window, at, k, saves):
    calls = calls_of_a_save(tmp_path / "count", k, at, saves)
    assert calls > 8
    for nth in range(1, calls + 1):
        for when in ("before", "after") if nth == calls else ("before",):
            root = tmp_path / f"{nth}{when}"
            storage, stall = FaultyStorage(LocalStorage(root)), Stall()
            manager, run = begun(storage, k, at, window=window, buffer_bytes=1 << 30)
            for _ in range(saves - 1):
                manager.save(run).result()
                go_on(manager, run, k)
            storage.inject(Fault(stall, nth=nth, when=when))
            name, digest = through_a_stall(manager, run, stall, k)
            manager.close()
            assert_restores(root, name, digest, k)


KEYS = ["*/weights-000.safetensors", "*/optimizer-000.safetensors", "frozen/*"]


@windows
@places
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("share", [0, 0.5, 1])
@pytest.mark.usefixtures("_small_buffers")
def test_a_stall_inside_of_a_file_tears_nothing(root, *, window, at, k, key, share):
    stall = Stall()
    manager, run = begun(Streams(root, key, share, stall), k, at, window=window, buffer_bytes=1 << 30)
    name, digest = through_a_stall(manager, run, stall, k)
    assert_restores(root, name, digest, k)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("window", ["auto", "slice"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_stall_inside_large_file_tears_nothing(root, window, key, share):
    """With buffers and direct writes as they are."""
    stall = Stall()
    storage = Streams(root, key, share, stall)
    manager, run = begun(storage, 4, 6, window=window, size=LARGE, buffer_bytes=1 << 30)
    name, digest = through_a_stall(manager, run, stall, 4)
    assert_restores(root, name, digest, 4, LARGE)


@places
@pytest.mark.parametrize("key", KEYS[:2])
@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.usefixtures("_small_buffers")
def test_copies_ahead_hold_their_moment(root, monkeypatch, *, at, k, key, share):
    """After a save that outlasted its window, the next one is copied in the background."""
    storage = Streams(root, key, share, Stall())
    manager, run = begun(storage, k, at, buffer_bytes=1 << 30)
    through_a_stall(manager, run, storage._stall, k)
    go_on(manager, run, 2 * k - 1)
    copied, copy, has_ended = [], CopyAhead.copy, threading.Event()

    def watched(ahead) -> None:
        copy(ahead)
        copied.append(ahead.cost.fenced_bytes)
        has_ended.set()

    monkeypatch.setattr(CopyAhead, "copy", watched)
    monkeypatch.setattr(WindowPace, "lacking_bytes", lambda pace, live_bytes, micro_steps: live_bytes)
    storage._stall = Stall()
    digest = run.digest()
    handle = manager.save(run)
    assert has_ended.wait(LONG_SECONDS)
    go_on(manager, run, 2 * k)
    assert storage._stall.reached.wait(LONG_SECONDS)
    assert not handle.done()
    storage._stall.let_go()
    name = handle.result()
    manager.close()
    assert copied[0] > 0
    assert_restores(root, name, digest, k)


@pytest.mark.parametrize("window", ["auto", "slice"])
@pytest.mark.usefixtures("_small_buffers")
def test_stall_inside_restarted_write_tears_nothing(root, window):
    """The write begins again after the stall, while training goes on."""
    stall = Stall()
    storage = FaultyStorage(LocalStorage(root), [Fault(stall, operations={"write"}, key=KEYS[0], when="during")])
    manager, run = begun(storage, 4, 6, window=window, buffer_bytes=1 << 30)
    name, digest = through_a_stall(manager, run, stall, 4)
    assert_restores(root, name, digest, 4)


@windows
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("when_busy", ["skip", "wait"])
@pytest.mark.usefixtures("_small_buffers")
def test_slow_disk_saves_hold_their_moment(root, monkeypatch, window, k, when_busy):
    """Saves are due at every micro-step and each stalls for longer than a cycle, or until training waits for it."""
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, k, 0, window=window, when_busy=when_busy, save=SaveEvery(micro_steps=1))
    stalls: list[Stall] = []
    wait = SaveHandle._wait

    def seen_waiting(handle, timeout) -> None:
        for stall in stalls:
            stall.let_go()
        wait(handle, timeout)

    monkeypatch.setattr(SaveHandle, "_wait", seen_waiting)
    let_go_by_fence(manager, stalls)
    digests = {}
    last, under_way = 0, None
    for _ in run.train_until(4 * k + 3):
        progress = run.progress()
        handle = manager.step(run)
        if handle is None:
            if run.batches - last > k:
                for stall in stalls:
                    stall.let_go()
                under_way.result()
            continue
        last, under_way = run.batches, handle
        digests[progress.cycles, progress.micro_step] = run.digest()
        stalls.append(Stall())
        storage.inject(Fault(stalls[-1], operations={"create"}, key="*/COMMIT"))
    for stall in stalls:
        stall.let_go()
    manager.close()
    found = manager.checkpoints()
    assert len(found) == len(digests)
    assert (manager.skipped_saves > 0) == (when_busy == "skip")
    for one in found:
        assert_restores(root, one.name, digests[one.progress.cycles, one.progress.micro_step], k)


# Full buffers


class Seen(threading.Condition):
    """Of a pool: calls ``on_wait`` before the training thread waits for a buffer."""

    def __init__(self, pool, on_wait) -> None:
        super().__init__(pool.lock)
        self._take, pool.take, pool.changed = pool.take, self._counted, self
        self.training_waits = 0
        self.beyond_limit = 0
        self._on_wait = on_wait
        self._training = threading.current_thread()

    def _counted(self, limit_bytes=None, *, beyond_limit=False):
        self.beyond_limit += beyond_limit
        return self._take(limit_bytes, beyond_limit=beyond_limit)

    def wait(self, timeout=None) -> bool:
        if threading.current_thread() is self._training:
            self.training_waits += 1
            self._on_wait()
        return super().wait(timeout)


def let_go_by_fence(manager, stalls) -> Seen:
    """Let ``stalls`` go as soon as the fence waits for a buffer."""
    return Seen(manager._setup.area._pool, lambda: [stall.let_go() for stall in stalls])


@places
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize("window", ["auto", "slice"])
@pytest.mark.usefixtures("_small_buffers")
def test_fence_with_full_buffers_waits_for_storage(root, *, at, k, key, share, window):
    stall = Stall()
    manager, run = begun(Streams(root, key, share, stall), k, at, window=window, buffer_bytes=SMALL_BUFFER_BYTES)
    seen = let_go_by_fence(manager, [stall])
    digest = run.digest()
    handle = manager.save(run)
    copied_bytes = manager._setup.area._pool.made_bytes
    if window == "auto":
        assert stall.reached.wait(LONG_SECONDS)
    go_on(manager, run, 2 * k)
    assert stall.reached.wait(LONG_SECONDS)
    # A writer that waits for a slice when the fence comes gets buffers beyond the limit: nothing else would free any.
    assert seen.training_waits > 0 or (window == "slice" and seen.beyond_limit > 0)
    stall.let_go()
    assert_restores(root, handle.result(), digest, k)
    made_bytes = manager._setup.area._pool.made_bytes
    assert made_bytes <= copied_bytes + (2 if window == "slice" else 1) * SMALL_BUFFER_BYTES


# A save that fails


class Dying(BaseException):
    """Nobody's business to catch."""


def no_room() -> None:
    raise StorageError("could not write: no room") from OSError(errno.ENOSPC, "No space left on device")


def unexpected() -> None:
    raise RuntimeError("nobody thought of this")


def dying() -> None:
    raise Dying


FAILURES = {"full disk": no_room, "unexpected": unexpected, "dying": dying}


@windows
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("key", ["*/weights-000*", "*/optimizer-000*", "frozen/*", "*/manifest.json"])
@pytest.mark.usefixtures("_small_buffers")
def test_training_continues_after_failed_save_and_next_succeeds(root, caplog, window, failure, key):
    """The next save is whole, and no buffer is lost."""
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, 4, 6, window=window)
    stall = Stall()

    def fails_late() -> None:
        stall()
        FAILURES[failure]()

    storage.inject(Fault(fails_late, operations={"write"}, key=key, when="during"))
    seen = let_go_by_fence(manager, [stall])
    handle = manager.save(run)
    go_on(manager, run, 3)  # through an update
    assert stall.reached.wait(LONG_SECONDS)
    stall.let_go()
    assert handle.exception() is not None
    go_on(manager, run, 1)  # here it is reported
    assert "a background save failed (1 in a row)" in caplog.text
    pool = manager._setup.area._pool
    assert len(pool._free) * SMALL_BUFFER_BYTES == pool.made_bytes
    made_bytes = pool.made_bytes
    digest = run.digest()
    name = manager.save(run).result()
    assert_restores(root, name, digest, 4)
    assert pool.made_bytes <= max(made_bytes, pool.limit_bytes, *manager._setup.area._limits)
    assert seen is pool.changed


@pytest.mark.usefixtures("_small_buffers")
def test_a_disk_that_stays_full_costs_no_memory(root):
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, 4, 4, on_save_error="warn")
    manager.save(run).result()
    made_bytes = manager._setup.area._pool.made_bytes
    for _ in range(20):
        manager._run.results._failures_in_a_row = 0
        storage.clear()
        storage.inject(Fault(no_room, operations={"write"}, key="*/optimizer*", times=None))
        go_on(manager, run, 4)
        assert isinstance(manager.save(run).exception(), StorageError)
    storage.clear()
    go_on(manager, run, 4)
    digest = run.digest()
    assert_restores(root, manager.save(run).result(), digest, 4)
    pool = manager._setup.area._pool
    assert pool.made_bytes <= max(made_bytes, pool.limit_bytes, *manager._setup.area._limits)


def test_consecutive_failures_end_training_with_open_window(root):
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, 4, 4, on_save_error="raise")
    storage.inject(Fault(no_room, operations={"write"}, times=None))
    manager.save(run).exception()
    with pytest.raises(SaveFailedError, match="no room"):
        manager.step(run)
    go_on_without = run.batches + 4
    for _ in run.train_until(go_on_without):  # the fence of a save that has failed holds nobody up
        pass


@windows
def test_save_without_writer_thread_fails_and_next_succeeds(root, monkeypatch, caplog, window):
    manager, run = begun(root, 4, 6, window=window, buffer_bytes=1)
    start = threading.Thread.start

    def none_left(thread) -> None:
        if thread.name == "ckptkit-writer":
            raise RuntimeError("can't start new thread")
        start(thread)

    manager.save(run).result()
    manager.wait()
    buffer_bytes = manager.totals.buffer_bytes
    go_on(manager, run, 4)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        assert isinstance(manager.save(run).exception(), RuntimeError)
    go_on(manager, run, 4)
    assert "can't start new thread" in caplog.text
    digest = run.digest()
    assert_restores(root, manager.save(run).result(), digest, 4)
    manager.wait()
    assert manager.totals.buffer_bytes == buffer_bytes  # those of the failed save are used again


# The end


@windows
@pytest.mark.usefixtures("_small_buffers")
def test_close_waits_for_save_being_written(root, monkeypatch, window):
    stall = Stall()
    manager, run = begun(Streams(root, KEYS[0], 0.5, stall), 4, 6, window=window, buffer_bytes=1)
    let_go_by_fence(manager, [stall])
    wait = SaveHandle._wait
    monkeypatch.setattr(SaveHandle, "_wait", lambda handle, timeout: stall.let_go() or wait(handle, timeout))
    digest = run.digest()
    handle = manager.save(run)
    manager.close()
    run.train_step()
    run.train_step()  # an update
    assert handle.done()
    assert_restores(root, handle.result(), digest, 4)


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 30])
@pytest.mark.usefixtures("_small_buffers")
def test_a_result_needs_no_further_step(root, buffer_bytes):
    manager, run = begun(root, 4, 6, window="slice", buffer_bytes=buffer_bytes)
    digest = run.digest()
    assert_restores(root, manager.save(run).result(), digest, 4)


LEAVING = """
import atexit, sys, threading
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

root, window, how, key = sys.argv[1:]
go = threading.Event()
storage = FaultyStorage(LocalStorage(root), [Fault(lambda: go.wait(60), operations={"write", "create"}, key=key)])
manager, run = CheckpointManager(storage, saving=Saving(window=window, buffer_bytes=1)), NumpyRun(size=1_200_001)
manager.restore(run)
for _ in run.train_until(6):
    pass
manager.save(run)
atexit.register(go.set)  # after the save, so that it runs before the save is waited for
print(run.digest(), flush=True)
if how == "exception":
    raise KeyError("unhandled")
if how == "exit":
    sys.exit(3)
"""


@pytest.mark.covering(1)
@pytest.mark.parametrize("key", ["frozen/*", "*/weights-000*", "*/COMMIT"])
@pytest.mark.parametrize(("how", "code"), [("falling off the end", 0), ("exit", 3), ("exception", 1)])
@pytest.mark.parametrize("window", ["auto", "slice"])
def test_interpreter_exit_finishes_a_begun_save(tmp_path, window, how, code, key):
    done = python("-c", LEAVING, tmp_path, window, how, key, expect=code, timeout=120)
    assert ("KeyError" in done.stderr) == (how == "exception")
    assert_restores(tmp_path, "a000001-c0000000001-m0002", done.stdout.strip(), 4, 1_200_001)


# Mostly frozen


class MostlyFrozen(NumpyRun):
    """With 19 frozen bytes to each byte that changes."""

    def __init__(self) -> None:
        super().__init__(size=SMALL)
        self.base = np.random.default_rng(1).standard_normal(37 * SMALL).astype(np.float32)

    def capture(self):
        capture = super().capture()
        base = leaf_of("base", self.base, role="weights", lifetime="frozen")
        return replace(capture, leaves=(*capture.leaves, base))


@windows
@pytest.mark.usefixtures("_small_buffers")
def test_frozen_leaves_are_written_once_and_never_copied(root, window):
    run, reports = MostlyFrozen(), []
    with CheckpointManager(root, save=ON_REQUEST, saving=Saving(window=window, on_save=reports.append)) as manager:
        manager.restore(run)
        names = []
        for _ in range(4):
            go_on(manager, run, 4)
            names.append(manager.save(run).result())
            manager.wait()
    leaves = run.capture().leaves
    frozen = sum(leaf.size_bytes for leaf in leaves if leaf.lifetime == "frozen")
    changing = sum(leaf.size_bytes for leaf in leaves) - frozen
    assert frozen > 0.94 * (frozen + changing)
    held = load(LocalStorage(root), opened(LocalStorage(root), names[-1]))
    assert held.tensors["base"].tobytes() == run.base.tobytes()
    assert sum(path.stat().st_size for path in (root / "frozen").rglob("*.safetensors")) < 1.01 * frozen
    for name, report in list(zip(names, reports, strict=True))[1:]:
        written = sum(path.stat().st_size for path in (root / "checkpoints" / name).rglob("*") if path.is_file())
        assert written <= 1.05 * changing
        assert report.size_bytes <= 1.05 * changing
        if window != "slice":
            assert report.cost.copied_bytes + report.cost.fenced_bytes <= changing


@windows
@pytest.mark.usefixtures("_small_buffers")
def test_frozen_file_that_somebody_deleted_is_rewritten(root, window):
    """By the same save, or by the next one where memory is copied slice by slice."""
    manager, run = begun(LocalStorage(root), 4, 4, window=window)
    manager.save(run).result()
    for path in (root / "frozen").rglob("*.safetensors"):
        path.unlink()
    if window == "slice":
        go_on(manager, run, 4)
        failed = manager.save(run).exception()
        assert "which this process wrote, is missing: a part of the run was deleted" in str(failed)
    go_on(manager, run, 4)
    digest = run.digest()
    assert_restores(root, manager.save(run).result(), digest, 4)


@pytest.mark.parametrize("nth", range(1, 10))
@pytest.mark.usefixtures("_small_buffers")
def test_changed_frozen_leaf_fails_one_save_then_demotes(root, nth):
    """Changed while the storage stalls at any of the save's calls."""
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, 4, 4)
    manager.save(run).result()
    go_on(manager, run, 4)
    storage.inject(Fault(lambda: run.embedding.__setitem__(3, 7.5), nth=nth))
    before = run.digest()
    failed = manager.save(run).exception()
    if failed is None:  # it changed after it was looked at
        assert_restores(root, manager.latest().name, before, 4)
        return
    assert "training changed parameters that are declared frozen: embedding" in str(failed)
    go_on(manager, run, 4)
    digest = run.digest()
    name = manager.save(run).result()
    assert_restores(root, name, digest, 4)


@pytest.mark.parametrize("window", ["auto", "slice"])
@pytest.mark.usefixtures("_small_buffers")
def test_demotion_rewrites_other_frozen_leaves(root, window):
    run = MostlyFrozen()
    manager = CheckpointManager(root, save=ON_REQUEST, saving=Saving(window=window, buffer_bytes=1))
    manager.restore(run)
    go_on(manager, run, 4)
    manager.save(run).result()
    run.embedding[3] = 7.5
    go_on(manager, run, 4)
    assert "declared frozen: embedding" in str(manager.save(run).exception())
    go_on(manager, run, 4)
    handle = manager.save(run)
    embedding = run.embedding.tobytes()
    go_on(manager, run, 5)
    held = load(LocalStorage(root), opened(LocalStorage(root), handle.result()))
    assert held.tensors["base"].tobytes() == run.base.tobytes()
    assert held.tensors["embedding"].tobytes() == embedding


class Unspeakable(BaseException):
    """What not even its message can be had of."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("window", ["auto", "slice"])
def test_writer_death_is_a_failed_save(root, window):
    """However a writer dies: who waits for its save, or for its memory, does not for ever."""

    def die():
        raise Unspeakable

    fault = Fault(die, operations={"write"})
    storage = FaultyStorage(LocalStorage(root), [fault])
    manager, run = begun(storage, 4, 4, window=window, buffer_bytes=1, events=False)
    handle = manager.save(run)
    assert isinstance(handle.exception(timedelta(seconds=30)), Unspeakable)
    manager.fence()
    for thread in threading.enumerate():
        if thread.name == "ckptkit-writer":
            thread.join()  # pytest gives the warning of its end to whichever test runs then
    assert fault.fired == 1
    assert CheckpointManager(root).checkpoints() == []


def test_thread_that_is_gone_is_a_failed_save(monkeypatch, root):
    """As in a process that was forked off."""
    manager, run = begun(root, 4, 6, window="slice", buffer_bytes=1)
    manager.save(run).result()
    manager.wait()
    buffer_bytes = manager.totals.buffer_bytes
    go_on(manager, run, 4)
    monkeypatch.setattr(Worker, "_begin", lambda worker: worker._runs.update(runs=True))  # and ends
    handle = manager.save(run)
    assert isinstance(handle.exception(timedelta(seconds=30)), SaveFailedError)
    assert handle.done()
    monkeypatch.undo()
    go_on(manager, run, 4)
    digest = run.digest()
    assert_restores(root, manager.save(run).result(), digest, 4)
    manager.wait()
    assert manager.totals.buffer_bytes == buffer_bytes


class OnDevice(NumpyRun):
    """Leaves are copied from a device: the thread ``waiter`` is in such a copy until ``go`` is set, or for a moment."""

    def __init__(self, **options):
        super().__init__(**options)
        self.copying, self.go = threading.Event(), threading.Event()

    def capture(self):
        taken = super().capture()

        def copied(leaf):
            def source(bits=leaf.source):
                if threading.current_thread().name == "waiter":
                    self.copying.set()
                    self.go.wait(0.5)
                return bits

            return leaf._replace(source=source) if leaf.spec.lifetime == "cycle" else leaf

        return Capture(taken.progress, tuple(map(copied, taken.leaves)), taken.state)


def test_slice_that_a_waiting_thread_still_copies_gets_into_no_later_save(root, monkeypatch):
    """The save that it is for has failed meanwhile, and its buffer is free for the next one."""
    run = OnDevice(accumulation_steps=8, size=LARGE)

    def full():
        assert run.copying.wait(LONG_SECONDS)
        raise StorageError("no space left on the device")

    fault = Fault(full, operations={"write"}, key="*.safetensors")
    manager = CheckpointManager(
        FaultyStorage(LocalStorage(root), [fault]), save=ON_REQUEST, saving=Saving(window="slice")
    )
    manager.restore(run)
    go_on(manager, run, 1)
    opens = StagingArea.open

    def opened(*arguments, **options):
        made = opens(*arguments, **options)
        if fault.fired:
            run.go.set()  # the late slice arrives now
        return made

    monkeypatch.setattr(StagingArea, "open", opened)
    failing = manager.save(run)
    waiter = threading.Thread(target=failing.exception, name="waiter", daemon=True)
    waiter.start()
    while not failing._ended.is_open:
        threading.Event().wait(0.001)
    handle = manager.save(run)
    waiter.join(LONG_SECONDS)
    assert fault.fired == 1
    assert_restores(root, handle.result(), run.digest(), 8, size=LARGE)
    manager.close()


class DeadlineError(TimeoutError):
    """The user's own, raised by a handler of SIGALRM."""


def test_deadline_of_the_user_ends_a_final_save(root, monkeypatch):
    """It is no TimeoutError of a wait of ours, which goes on."""
    run, go, waits = NumpyRun(), threading.Event(), []
    fault = Fault(lambda: go.wait(LONG_SECONDS), operations={"write"}, key="*.safetensors")
    manager = CheckpointManager(FaultyStorage(LocalStorage(root), [fault]), save=ON_REQUEST)
    manager.restore(run)
    go_on(manager, run, 4)
    wait = SaveHandle._wait

    def interrupted(handle, timeout):
        waits.append(timeout)
        if len(waits) == 1:
            raise DeadlineError
        go.set()
        return wait(handle, timeout)

    monkeypatch.setattr(SaveHandle, "_wait", interrupted)
    with pytest.raises(DeadlineError):
        manager.save_final(run)
    assert len(waits) == 1
    go.set()
    manager.close()


class Interrupted(NumpyRun):
    """Ctrl-C comes once, right after the state was taken."""

    interrupted = False

    def guard(self, fence):
        super().guard(fence)
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt


def test_fence_after_interrupted_save_waits_for_nobody(root):
    run = Interrupted(size=LARGE)
    manager = CheckpointManager(root, save=ON_REQUEST, saving=Saving(window="auto", buffer_bytes=1))
    manager.restore(run)
    for _ in run.train_until(4):
        pass
    with pytest.raises(KeyboardInterrupt):
        manager.save(run)
    fencing = threading.Thread(target=manager.fence, daemon=True)
    fencing.start()
    fencing.join(LONG_SECONDS)
    assert not fencing.is_alive()
    digest = run.digest()
    assert_restores(root, manager.save(run).result(), digest, 4, size=LARGE)


def test_fence_that_raises_runs_before_next_update():
    """Else the update after Ctrl-C would change what a save still reads."""
    run, seen = NumpyRun(accumulation_steps=4), []

    def fence() -> None:
        seen.append(run.weights.copy())
        if len(seen) == 1:
            raise KeyboardInterrupt

    run.guard(fence)
    with pytest.raises(KeyboardInterrupt):
        for _ in run.train_until(4):
            pass
    for _ in run.train_until(8):
        pass
    first, second = seen
    assert np.array_equal(first, second)
    assert not np.array_equal(run.weights, second)


LEAVING_THE_CONTEXT = """
import os, sys, threading
from ckptkit.errors import CkptKitError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

root, how = sys.argv[1:]
go, reached = threading.Event(), threading.Event()
def hold():
    reached.set()
    go.wait(60)
fault = Fault(hold, operations={"write"}, key="*")
run = NumpyRun(size=1_200_001)
parent = os.getpid()
try:
    storage = FaultyStorage(LocalStorage(root), [fault])
    with CheckpointManager(storage, mirror=root + "-mirror", saving=Saving(buffer_bytes=1)) as manager:
        manager.restore(run)
        for _ in run.train_until(6):
            pass
        handle = manager.save(run)
        assert reached.wait(60)
        child = os.fork()
        if not child and how == "exit":
            sys.exit(7)
        if not child and how == "error":
            raise SystemExit(7) from KeyError("in the child")
        if not child and how == "use":
            refused = 0
            for use in (handle.result, manager.wait, lambda: manager.step(run), lambda: manager.save_final(run)):
                try:
                    use()
                except CkptKitError as error:
                    refused += "forked from" in str(error)
            manager.fence()
            for _ in run.train_until(10):
                pass
            manager.close()
            os._exit(3 + refused)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        go.set()
finally:
    if os.getpid() == parent:
        print("code", code, "fired", fault.fired, handle.result(), flush=True)
"""


@pytest.mark.parametrize("how", ["exit", "error", "use"])
def test_forked_child_leaves_the_save_alone(tmp_path, how):
    """Also inside of the manager's context: the child has neither the writer thread nor the run."""
    done = python("-c", LEAVING_THE_CONTEXT, tmp_path / "run", how, expect=None)
    assert done.stdout == "code 7 fired 1 a000001-c0000000001-m0002\n", done.stderr
    for root in ("run", "run-mirror"):
        assert [one.name for one in CheckpointManager(tmp_path / root).checkpoints()] == ["a000001-c0000000001-m0002"]
    texts = [file.read_text() for file in (tmp_path / "run" / "events").iterdir()]
    events = [json.loads(line) for text in texts for line in text.splitlines()]
    assert [one["how"] for one in events if one.get("kind") == "ended"] == ["closed"]


def test_manager_made_before_fork_saves_in_the_child(root, monkeypatch):
    """Whoever restores is the one that trains."""
    manager, run = CheckpointManager(root, save=ON_REQUEST), NumpyRun()
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with manager:
        manager.restore(run)
        for _ in run.train_until(6):
            manager.step(run)
        name = manager.save_final(run)
    assert [one.name for one in manager.checkpoints()] == [name]
