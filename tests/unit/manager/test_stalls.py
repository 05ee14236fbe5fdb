"""A storage stalls, fails or dies at any point while training goes on: what is committed is the moment of the save."""

import json
import os
import threading
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from support.clock import clock_of_calls
from support.live import LONG_SECONDS, Stall
from support.process import python
from support.runs.grown import ON_REQUEST, opened, started

from ckptkit.checkpoint.read import load
from ckptkit.core import waiting
from ckptkit.core.tensors import leaf_of
from ckptkit.core.worker import Worker
from ckptkit.errors import SaveFailedError, StorageError
from ckptkit.manager import run as live_run
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun

SMALL = 20_011  # elements, so that a leaf takes several of the small buffers
SMALL_BUFFER_BYTES = 16 << 10


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    for module in ("buffers", "staging", "window"):
        monkeypatch.setattr(f"ckptkit.snapshot.{module}.BUFFER_BYTES", SMALL_BUFFER_BYTES)


def begun(storage, k, at, *, saves=0, **options) -> tuple[CheckpointManager, NumpyRun]:
    """A manager and its run after ``at`` micro-steps, and after so many saves with a cycle behind each."""
    run = NumpyRun(accumulation_steps=k, size=SMALL)
    manager, _ = started(storage, run, monotonic=clock_of_calls(), **options)
    go_on(manager, run, at)
    for _ in range(saves):
        manager.save(run).result()
        go_on(manager, run, k)
    return manager, run


def go_on(manager, run, micro_steps) -> None:
    for _ in run.train_until(run.batches + micro_steps):
        manager.step(run)


def assert_restores(root, name, digest, k) -> None:
    found = NumpyRun(seed=99, accumulation_steps=k, size=SMALL)
    found.embedding[:] = -1
    CheckpointManager(root).restore(found, checkpoint=name, rewind=True)
    assert found.digest() == digest


def test_slices_leave_the_fence_nothing_to_copy(root):
    manager, run = begun(root, 4, 1, window="slice", buffer_bytes=64 << 20)
    handle = manager.save(run)
    go_on(manager, run, 4)
    cost = handle.report().cost
    assert cost.fenced_bytes
    assert not cost.fence_seconds


@pytest.mark.parametrize(
    ("window", "at", "k", "saves"), [("auto", 6, 4, 1), ("auto", 3, 1, 0), ("slice", 6, 4, 0), ("off", 4, 4, 1)]
)
def test_stall_at_any_save_call_tears_nothing(tmp_path, window, at, k, saves):
    counted = FaultyStorage(LocalStorage(tmp_path / "counted"))
    manager, run = begun(counted, k, at, saves=saves)
    before = len(counted.calls)
    manager.save(run).result()
    calls = len(counted.calls) - before
    assert calls > 8
    for nth in range(1, calls + 1):
        for when in ("before", "after") if nth == calls else ("before",):
            root = tmp_path / f"{nth}{when}"
            storage, stall = FaultyStorage(LocalStorage(root)), Stall()
            manager, run = begun(storage, k, at, saves=saves, window=window, buffer_bytes=1 << 30)
            storage.inject(Fault(stall, nth=nth, when=when))
            digest, handle = run.digest(), manager.save(run)
            go_on(manager, run, k + 1)  # through an update: with slices it is this that lets the writer get anywhere
            assert stall.reached.wait(LONG_SECONDS)
            assert not handle.done()
            go_on(manager, run, k)  # and through another
            stall.let_go()
            assert_restores(root, handle.result(), digest, k)
            manager.close()


KEYS = ["*/weights-000.safetensors", "*/optimizer-000.safetensors", "frozen/*"]


@pytest.mark.parametrize(
    ("window", "failure", "key"),
    [
        ("auto", StorageError("no room"), KEYS[0]),
        ("slice", RuntimeError("nobody thought of this"), KEYS[1]),
        ("off", SystemExit("nobody's business to catch"), "frozen/*"),
    ],
)
def test_training_continues_after_failed_save_and_next_succeeds(root, caplog, window, failure, key):
    """The next save is whole, and no buffer is lost."""
    storage = FaultyStorage(LocalStorage(root))
    manager, run = begun(storage, 4, 6, window=window, buffer_bytes=1 << 30)
    stall = Stall()

    def fails_late() -> None:
        stall()
        raise failure

    storage.inject(Fault(fails_late, operations={"write"}, key=key, when="during"))
    handle = manager.save(run)
    go_on(manager, run, 3)  # through an update
    assert stall.reached.wait(LONG_SECONDS)
    stall.let_go()
    assert handle.exception() is not None
    go_on(manager, run, 1)  # here it is reported
    assert "a background save failed (1 in a row)" in caplog.text
    pool = manager._setup.area._pool
    assert len(pool._free) * SMALL_BUFFER_BYTES == pool.made_bytes
    digest = run.digest()
    name = manager.save(run).result()
    assert_restores(root, name, digest, 4)


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


LEAVING_THE_CONTEXT = """
import os, sys, threading
import ckptkit as ck
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
    with ck.CheckpointManager(storage, mirror=root + "-mirror", saving=ck.Saving(buffer_bytes=1)) as manager:
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
                except ck.CkptKitError as error:
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


def test_save_that_waits_for_another_says_so(tmp_path, monkeypatch):
    """However long that takes, the log tells how far the write is."""
    monkeypatch.setattr(live_run, "A_WHILE", timedelta(milliseconds=1))
    monkeypatch.setattr(waiting, "_LINE_EVERY", timedelta(milliseconds=100))
    stall, said = Stall(), []
    manager, run = begun(FaultyStorage(LocalStorage(tmp_path), [Fault(stall, operations={"write"})]), 4, 1)
    manager.save(run)
    go_on(manager, run, 1)

    def tell(line, *_):
        said.append(line)
        stall.let_go()

    monkeypatch.setattr(waiting._log, "info", tell)
    manager.save(run).result()
    assert said
    manager.close()
