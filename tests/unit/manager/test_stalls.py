"""A storage stalls, fails or dies at any point while training goes on: what is committed is the moment of the save."""

from __future__ import annotations

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
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

SMALL = 20_011  # elements, so that a leaf takes several of the small buffers
SMALL_BUFFER_BYTES = 16 << 10
LARGE = 700_001  # elements: files that are written directly


@pytest.fixture
def _small_buffers(monkeypatch):
    for module in ("buffers", "staging", "window"):
        monkeypatch.setattr(f"ckptkit.snapshot.{module}.BUFFER_BYTES", SMALL_BUFFER_BYTES)


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


@pytest.mark.parametrize(
    ("window", "at", "k", "saves"), [("auto", 6, 4, 2), ("auto", 3, 1, 1), ("slice", 6, 4, 1), ("off", 4, 4, 2)]
)
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


@pytest.mark.parametrize(
    ("window", "k", "when_busy"), [("auto", 4, "skip"), ("auto", 1, "wait"), ("slice", 4, "wait"), ("off", 1, "skip")]
)
@pytest.mark.usefixtures("_small_buffers")
def test_slow_disk_saves_hold_their_moment(root, monkeypatch, window, k, when_busy):
    """Saves are due at every micro-step and each stalls for longer than a cycle, or until training waits for it."""
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, k, 0, window=window, when_busy=when_busy, save=SaveEvery(micro_steps=1))
    stalls: list[Stall] = []
    wait = SaveHandle._wait

    def let_go() -> None:
        for stall in stalls:
            stall.let_go()

    monkeypatch.setattr(SaveHandle, "_wait", lambda handle, timeout: let_go() or wait(handle, timeout))
    let_go_by_fence(manager, stalls)
    digests, last, under_way = {}, 0, None
    for _ in run.train_until(4 * k + 3):
        progress, handle = run.progress(), manager.step(run)
        if handle is not None:
            last, under_way = run.batches, handle
            digests[progress.cycles, progress.micro_step] = run.digest()
            stalls.append(Stall())
            storage.inject(Fault(stalls[-1], operations={"create"}, key="*/COMMIT"))
        elif run.batches - last > k:
            let_go()
            under_way.result()
    let_go()
    manager.close()
    assert len(manager.checkpoints()) == len(digests)
    assert (manager.skipped_saves > 0) == (when_busy == "skip")
    for one in manager.checkpoints():
        assert_restores(root, one.name, digests[one.progress.cycles, one.progress.micro_step], k)


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


class Dying(BaseException):
    """Nobody's business to catch."""


FAILURES = {
    "full disk": StorageError("could not write: no room"),
    "unexpected": RuntimeError("nobody thought of this"),
    "dying": Dying(),
}


@pytest.mark.parametrize(
    ("window", "failure", "key"),
    [
        ("auto", "full disk", KEYS[0]),
        ("slice", "unexpected", KEYS[1]),
        ("slice", "full disk", "frozen/*"),
        ("off", "dying", "frozen/*"),
        ("auto", "dying", "*/manifest.json"),
    ],
)
@pytest.mark.usefixtures("_small_buffers")
def test_training_continues_after_failed_save_and_next_succeeds(root, caplog, window, failure, key):
    """The next save is whole, and no buffer is lost."""
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, 4, 6, window=window)
    stall = Stall()

    def fails_late() -> None:
        stall()
        raise FAILURES[failure]

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


@pytest.mark.parametrize(("window", "how"), [("auto", "cannot start"), ("slice", "is gone"), ("off", "cannot start")])
def test_save_without_its_thread_fails_and_next_succeeds(root, monkeypatch, window, how):
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
        if how == "is gone":  # as in a process that was forked off
            patch.setattr(Worker, "_begin", lambda worker: worker._runs.update(runs=True))
        else:
            patch.setattr(threading.Thread, "start", none_left)
        handle = manager.save(run)
        error = handle.exception(timedelta(seconds=30))
        assert isinstance(error, SaveFailedError if how == "is gone" else RuntimeError)
        assert handle.done()
    go_on(manager, run, 4)
    digest = run.digest()
    assert_restores(root, manager.save(run).result(), digest, 4)
    manager.wait()
    assert manager.totals.buffer_bytes == buffer_bytes  # those of the failed save are used again


class MostlyFrozen(NumpyRun):
    """With 19 frozen bytes to each byte that changes."""

    def __init__(self) -> None:
        super().__init__(size=SMALL)
        self.base = np.random.default_rng(1).standard_normal(37 * SMALL).astype(np.float32)

    def capture(self):
        capture = super().capture()
        base = leaf_of("base", self.base, role="weights", lifetime="frozen")
        return replace(capture, leaves=(*capture.leaves, base))


@pytest.mark.parametrize("window", ["auto", "slice"])
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


@pytest.mark.parametrize("window", ["auto", "slice"])
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


@pytest.mark.usefixtures("_small_buffers")
def test_changed_frozen_leaf_fails_one_save_then_demotes(tmp_path):
    """Changed while the storage stalls at any of the save's calls."""
    failures = 0
    for nth in range(1, 10):
        storage = FaultyStorage(LocalStorage(tmp_path / str(nth)))
        manager, run = begun(storage, 4, 4)
        manager.save(run).result()
        go_on(manager, run, 4)
        storage.inject(Fault(lambda run=run: run.embedding.__setitem__(3, 7.5), nth=nth))
        before = run.digest()
        failed = manager.save(run).exception()
        if failed is None:  # it changed after it was looked at
            assert_restores(tmp_path / str(nth), manager.latest().name, before, 4)
            continue
        failures += 1
        assert "training changed parameters that are declared frozen: embedding" in str(failed)
        go_on(manager, run, 4)
        digest = run.digest()
        assert_restores(tmp_path / str(nth), manager.save(run).result(), digest, 4)
    assert 0 < failures < 9


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


LEAVING_THE_CONTEXT = """
import os, sys, threading
from ckptkit.errors import CkptKitError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

root = sys.argv[1]
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
        if not child:
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
            sys.exit(3 + refused)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        go.set()
finally:
    if os.getpid() == parent:
        print("code", code, "fired", fault.fired, handle.result(), flush=True)
"""


def test_forked_child_leaves_the_save_alone(tmp_path):
    """Also inside of the manager's context: the child has neither the writer thread nor the run."""
    done = python("-c", LEAVING_THE_CONTEXT, tmp_path / "run", expect=None)
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
