"""Jobs of many ranks over one run root, as threads of one process: what is saved, by whom, and what comes back."""

from __future__ import annotations

import contextlib
import itertools
import logging
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.process import forked
from support.runs.grown import opened
from support.runs.ranks import CYCLE, SIZE, check_whole, committed, digests_at, job, new_run
from support.thread_ranks import RankLostError, ThreadWorld, results_of, run_ranks

import ckptkit as ck
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import Capture, WantedPart
from ckptkit.core.placement import Box
from ckptkit.core.tensors import Leaf
from ckptkit.errors import ResumeError, SaveFailedError, StorageError
from ckptkit.manager import final_save
from ckptkit.manager import run as live_run
from ckptkit.manager.options import ERROR_BUDGET
from ckptkit.storage.local import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun


def test_error_comes_before_ranks_left_alone() -> None:
    def act(world: ThreadWorld) -> None:
        if world.rank == 1:
            raise ValueError("its own")
        world.gather("")

    with pytest.raises(ValueError, match="its own"):
        results_of(run_ranks(3, act))


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("stop", [3, 5, 8, 12])
def test_every_rank_goes_on_with_its_own_bits(tmp_path: Path, size: int, stop: int) -> None:
    results_of(job(tmp_path, size, stop))
    lives = results_of(job(tmp_path, size, 17))
    assert {one.began for one in lives} == {stop // 3 * 3}
    assert tuple(one.restored for one in lives) == digests_at(size, stop // 3 * 3)
    assert tuple(one.digest for one in lives) == digests_at(size, 17)
    assert len(set(digests_at(size, 17))) == size  # each has a generator of its own
    for name in committed(tmp_path):
        check_whole(tmp_path, name, size)


def test_ranks_restore_same_checkpoint_in_one_attempt(tmp_path: Path) -> None:
    results_of(job(tmp_path, 3, 7))
    lives = results_of(job(tmp_path, 3, 10))
    assert {one.checkpoint for one in lives} == {"a000001-c0000000001-m0002"}
    assert sorted(one.name for one in (tmp_path / "attempts").iterdir()) == ["000001.json", "000002.json"]


def test_final_save_of_all_ranks_is_committed(tmp_path: Path) -> None:
    lives = results_of(job(tmp_path, 3, 10, final=True))
    assert {one.saved[-1] for one in lives} == {"a000001-c0000000002-m0002"}
    assert committed(tmp_path)[-1] == "a000001-c0000000002-m0002"


@pytest.mark.parametrize("loser", [0, 1, 2])
def test_unwritable_part_voids_save_and_next_succeeds(
    tmp_path: Path, loser: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A rank that cannot write its part fails the save of all ranks, and the next save works."""
    fault = Fault("error", operations={"write"}, key=f"*m0002/rank-{loser:05d}.json")
    with caplog.at_level(logging.WARNING):
        lives = results_of(job(tmp_path, 3, 13, faults={loser: fault}, every=2))
    assert fault.fired == 1
    assert "injected failure" in caplog.text
    names = committed(tmp_path)
    assert names[-1] == "a000001-c0000000003-m0000"
    for name in names:
        check_whole(tmp_path, name, 3)
    assert tuple(one.digest for one in lives) == digests_at(3, 13)
    failed = tmp_path / "checkpoints" / "a000001-c0000000000-m0002"
    assert b"void_by" in (failed / "COMMIT").read_bytes()
    assert [one.name for one in failed.iterdir()] == ["COMMIT"]


def test_repeated_save_failures_end_all_ranks_together(tmp_path: Path) -> None:
    """A save that fails too often ends every rank at the same micro-step."""
    fault = Fault("error", operations={"write"}, key="*/rank-00001*", times=None)
    steps: dict[int, int] = {}

    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1), saving=ck.Saving(when_busy="wait"))
        manager.restore(run)
        for batches in run.train_until(until):
            steps[world.rank] = batches
            manager.step(run)
            manager.wait()  # rank 0 knows first, and must not leave alone
        raise AssertionError("it went on")

    ended = job(tmp_path, 3, 30, faults={1: fault}, act=act)
    assert [type(one.error) for one in ended] == [SaveFailedError] * 3
    assert "rank 1 could not write" in str(ended[0].error)
    assert "rank 0: a background save failed (3 in a row)" in str(ended[2].error)
    assert len(set(steps.values())) == 1
    assert fault.fired >= 3
    assert committed(tmp_path) == []


@pytest.mark.parametrize("how", ["at the end", "preempted"])
def test_final_save_of_ranks_forgives_earlier_failures(tmp_path: Path, how: str) -> None:
    """The one that was too many is known before the final save, and the storage is well again."""
    fault = Fault("error", operations={"write"}, key="*/rank-00000*", times=ERROR_BUDGET)

    def act(storage: FaultyStorage, world: ThreadWorld, until: int, **options: Any) -> None:
        run = new_run(world)
        preemption = ck.Preemption(then="return", when=lambda: how == "preempted")
        with ck.CheckpointManager(storage, preemption=preemption) as manager:
            manager.restore(run)
            for _ in run.train_until(ERROR_BUDGET):
                manager.save(run).exception()
                manager.wait()
            run.train_step()
            if how == "preempted":
                manager.step(run)
                assert manager.preempted
            else:
                manager.save_final(run)

    results_of(job(tmp_path, 2, 0, faults={0: fault}, act=act))
    assert fault.fired == ERROR_BUDGET
    assert committed(tmp_path) == ["a000001-c0000000001-m0000"]


@pytest.mark.parametrize("rank", [0, 1])
def test_save_without_a_thread_holds_up_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """One rank has no more threads once; the next save has a folder of its own."""
    start, failing = threading.Thread.start, [f"rank-{rank}"]

    def fail_once(thread: threading.Thread) -> None:
        if thread.name == "ckptkit-writer" and threading.current_thread().name in failing:
            failing.clear()
            raise RuntimeError("can't start new thread")
        start(thread)

    def act(storage: LocalStorage, world: ThreadWorld, until: int, **options: Any) -> tuple[str, str]:
        run = new_run(world)
        with ck.CheckpointManager(storage, ranks=ck.Ranks(patience=timedelta(hours=1))) as manager:
            manager.restore(run)
            return str(manager.save(run).exception(timedelta(seconds=40))), manager.save(run).result()

    monkeypatch.setattr(threading.Thread, "start", fail_once)
    ended = results_of(job(tmp_path, 2, 0, act=act))
    name = "a000001-c0000000000-m0000"
    assert failing == []
    assert ended[rank][0] == "can't start new thread"
    assert ended[0][0] != "None"
    assert committed(tmp_path) == [f"{name}-t02"] == sorted({saved for _, saved in ended})
    assert [one.name for one in (tmp_path / "checkpoints" / name).iterdir()] == ["COMMIT"]


def test_stalled_rank_prevents_commit_within_patience(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A rank that stalls means no commit, and a clear error once rank_patience is over."""
    results_of(job(tmp_path, 2, 4))
    before = committed(tmp_path)
    gate = threading.Event()

    def wait() -> None:
        assert gate.wait(30)

    stall = Fault(wait, operations={"write"}, key="*a000002*/rank-00001.json")

    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(
            storage, save=ck.SaveEvery(micro_steps=100), ranks=ck.Ranks(patience=timedelta(milliseconds=200))
        )
        manager.restore(run)
        for _ in run.train_until(5):
            pass
        handle = manager.save(run)
        error = handle.exception(timedelta(seconds=40))
        if world.rank == 0:
            gate.set()
        return error

    ended = results_of(job(tmp_path, 2, 0, faults={1: stall}, act=act))
    assert stall.fired == 1
    assert isinstance(ended[0], SaveFailedError)
    assert "rank 1 of 2 did not write" in str(ended[0])
    assert ended[1] is None  # it wrote its part, too late
    assert committed(tmp_path) == before


def test_rank_0_leaving_by_error_waits_briefly(tmp_path: Path) -> None:
    """Other ranks may have died of it, whose parts never come, however patient it is otherwise."""
    leaving, gate = threading.Event(), threading.Event()
    stall = Fault(lambda: gate.wait(5), operations={"write"})
    seconds = itertools.count(step=11)  # of rank 0's clock, once it leaves

    def act(storage, world, until, **options):
        run = new_run(world)
        monotonic = lambda: next(seconds) if leaving.is_set() else 0.0  # noqa: E731 - as short as a clock is
        manager = ck.CheckpointManager(
            storage, ranks=ck.Ranks(patience=timedelta(hours=1)), system=ck.System(monotonic=monotonic)
        )
        with contextlib.suppress(ZeroDivisionError), manager:
            manager.restore(run)
            handle = manager.save(run)
            if world.rank == 0:
                leaving.set()
            raise ZeroDivisionError
        if world.rank == 0:
            gate.set()
        return handle.exception()

    left, _ = results_of(job(tmp_path, 2, 0, faults={1: stall}, act=act))
    assert stall.fired == 1
    assert "no other part arrived for 0:00:10" in str(left)
    assert committed(tmp_path) == []


@pytest.mark.parametrize("what", ["progress", "k", "model"])
def test_ranks_that_disagree_save_nothing(tmp_path: Path, what: str) -> None:
    results_of(job(tmp_path, 2, 4))
    before = committed(tmp_path)

    def act(storage, world, until, **options):
        odd = world.rank == 1
        run = new_run(world)
        manager = ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=100))
        manager.restore(run)
        for _ in run.train_until(run.batches + 1):
            pass
        if odd and what == "progress":
            run.batches += 1
        elif odd and what == "k":
            run._accumulation_steps = 8
        elif odd:
            run.weights = run.weights.astype("float64")
        manager.save(run)

    ended = job(tmp_path, 2, 0, act=act)
    assert [type(one.error) for one in ended] == [ResumeError] * 2
    words = "another model" if what == "model" else "no longer in step"
    assert all(words in str(one.error) for one in ended)
    assert committed(tmp_path) == before


def _thawed(leaves: list[Leaf]) -> list[Leaf]:
    return [_with(one, lifetime="micro") if one.name == "embedding" else one for one in leaves]


def _cut(leaves: list[Leaf]) -> list[Leaf]:
    return [_with(one, placement=Box((SIZE,), (0,))) if one.name == "weights" else one for one in leaves]


def _with(leaf: Leaf, **changes: Any) -> Leaf:
    return leaf._replace(spec=replace(leaf.spec, **changes))


@pytest.mark.parametrize("twist", [_thawed, _cut, lambda leaves: leaves[::-1]], ids=["thawed", "cut", "reversed"])
def test_ranks_with_different_leaves_save_nothing(tmp_path: Path, twist: Callable[[list[Leaf]], list[Leaf]]) -> None:
    """Ranks whose leaves differ would share out the work differently, so all of them refuse to save."""

    def act(storage, world, until, **options):
        run = new_run(world)
        taken = run.capture
        if world.rank == 1:
            run.capture = lambda: replace(capture := taken(), leaves=tuple(twist(list(capture.leaves))))
        manager = ck.CheckpointManager(storage)
        manager.restore(run)
        manager.save(run)

    ended = job(tmp_path, 2, 0, act=act)
    assert [type(one.error) for one in ended] == [ResumeError] * 2
    assert all("order, names, dtypes, shapes or placements" in str(one.error) for one in ended)
    assert committed(tmp_path) == []


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([Box((SIZE,), (0,))] * 2, "store something twice"),
        ([Box((2 * SIZE,), (0,)), Box((2 * SIZE,), (SIZE - 1,))], "store something twice"),
        ([Box((3 * SIZE,), (0,)), Box((3 * SIZE,), (SIZE,))], "leave something out"),
        ([Box((2 * SIZE,), (0,)), Box((2 * SIZE,), (2 * SIZE,))], "are not inside the tensor"),
        ([Box((SIZE,), (0,), replica=1)] * 2, "leave something out"),
        ([Box((2 * SIZE,), (SIZE,)), Box((2 * SIZE,), (0,))], None),
        ([Box((SIZE,), (0,)), Box((SIZE,), (0,), replica=1)], None),
    ],
)
def test_incomplete_or_overlapping_parts_are_not_saved(tmp_path: Path, boxes: list[Box], message: str | None) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        taken = run.capture

        def capture() -> Capture:
            capture = taken()
            box = boxes[world.rank]
            leaves = [_with(one, placement=box) if one.name == "weights" else one for one in capture.leaves]
            return replace(capture, leaves=tuple(leaves))

        run.capture = capture
        with ck.CheckpointManager(storage) as manager:
            manager.restore(run)
            return manager.save_final(run)

    ended = job(tmp_path, 2, 0, act=act)
    if message is not None:
        assert [type(one.error) for one in ended] == [ResumeError] * 2
        assert all(message in str(one.error) for one in ended)
        assert committed(tmp_path) == []
        return
    results_of(ended)
    for name in committed(tmp_path):
        check_whole(tmp_path, name, 2)


def test_frozen_parts_of_ranks_can_be_read(tmp_path: Path) -> None:
    """Block by block, also from the second checkpoint on, which writes them no more."""

    def act(storage, world, until, **options):
        run = new_run(world)
        taken = run.capture

        def capture() -> Capture:
            capture = taken()
            box = Box((2 * SIZE,), (SIZE * world.rank,))
            leaves = [_with(one, placement=box) if one.name == "embedding" else one for one in capture.leaves]
            return replace(capture, leaves=tuple(leaves))

        run.capture = capture
        with ck.CheckpointManager(storage) as manager:
            manager.restore(run)
            names = [manager.save(run).result()]
            for _ in run.train_until(1):
                names.append(manager.save_final(run))
        return names, run.embedding

    (names, first), (_, second) = results_of(job(tmp_path, 2, 0, act=act))
    storage = LocalStorage(tmp_path)
    wanted = np.concatenate([first, second])[5:-5]
    for name in names:
        found = np.empty_like(wanted)
        part = WantedPart("embedding", Box((2 * SIZE,), (5,)), wanted.shape, found.view(np.uint8).data)
        load(storage, opened(storage, name)).read_parts([part])
        assert found.tobytes() == wanted.tobytes()


def test_a_busy_rank_skips_the_save_of_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ckptkit")
    go = threading.Event()
    fault = Fault(lambda: go.wait(60), operations={"write"}, key="*/rank-00001/*")

    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1)) as manager:
            manager.restore(run)
            saves = [manager.step(run) is not None for _ in run.train_until(2)]
            go.set()
        return saves

    assert results_of(job(tmp_path, 2, 0, faults={1: fault}, act=act)) == [[True, False]] * 2
    assert committed(tmp_path) == ["a000001-c0000000000-m0001"]
    assert caplog.text.count("a save is due and skipped") == 2


def test_ranks_save_the_same_state_once(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1)) as manager:
            manager.restore(run)
            for _ in run.train_until(1):
                name = manager.save(run).result()
                assert manager.save(run).result() == name
                assert manager.step(run) is None
        return name

    assert {*results_of(job(tmp_path, 3, 0, act=act))} == {*committed(tmp_path)}


def _final_after(disturb: Callable[[Path], None]) -> Callable[..., str]:
    """A job whose last state is committed, then ``disturb`` is called, and the final save of that state follows."""

    def act(storage: FaultyStorage, world: ThreadWorld, until: int, **options: Any) -> str:
        run = new_run(world)
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1)) as manager:
            manager.restore(run)
            run.train_step()
            manager.save(run).result()
            manager.wait()
            world.gather("")
            if world.rank == 0:
                disturb(Path(storage.url))
            world.gather("")
            return manager.save_final(run)

    return act


def test_metrics_of_rank_0_make_a_second_checkpoint(tmp_path: Path) -> None:
    def act(storage: FaultyStorage, world: ThreadWorld, until: int, **options: Any) -> list[str]:
        run = new_run(world)
        with ck.CheckpointManager(storage) as manager:
            manager.restore(run)
            mine = {"loss": float(world.rank)}
            names = [manager.save(run, metrics).result() for metrics in ({}, mine, {}, mine)]
            return [*names, manager.save_final(run, mine)]

    name = "a000001-c0000000000-m0000"
    assert results_of(job(tmp_path, 2, 0, act=act)) == [[name, *[f"{name}-t02"] * 4]] * 2
    assert committed(tmp_path) == [name, f"{name}-t02"]
    check_whole(tmp_path, f"{name}-t02", 2)


def _nothing(root: Path) -> None:
    pass


def _taken_over(root: Path) -> None:
    results_of(job(root, 2, 4))


@pytest.mark.parametrize(("disturb", "name"), [(_nothing, ""), (shutil.rmtree, "-t02")])
def test_ranks_save_lost_commit_again(tmp_path: Path, disturb: Callable[[Path], None], name: str) -> None:
    saved = results_of(job(tmp_path, 2, 0, act=_final_after(disturb)))
    assert saved == [f"a000001-c0000000000-m0001{name}"] * 2
    assert committed(tmp_path) == saved[:1]
    check_whole(tmp_path, saved[0], 2)


def test_committed_moment_hides_takeover_from_no_rank(tmp_path: Path) -> None:
    ended = job(tmp_path, 2, 0, act=_final_after(_taken_over))
    assert [type(one.error).__name__ for one in ended] == ["StaleAttemptError"] * 2


def test_rank_whose_part_failed_names_the_takeover(tmp_path: Path) -> None:
    def swept() -> None:
        _taken_over(tmp_path)
        raise StorageError("the folder is gone")

    def act(storage: FaultyStorage, world: ThreadWorld, until: int, **options: Any) -> str:
        run = new_run(world)
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=100)) as manager:
            manager.restore(run)
            run.train_step()
            return manager.save(run).result()

    fault = Fault(swept, operations={"write"}, key="*m0001/rank-00001.json")
    ended = job(tmp_path, 2, 0, act=act, faults={1: fault})
    assert fault.fired == 1
    assert [type(one.error).__name__ for one in ended] == ["StaleAttemptError"] * 2


@pytest.mark.parametrize("metric", [0.5, "n/a"])
def test_capture_or_metric_that_fails_in_one_rank_ends_all(tmp_path: Path, metric: Any) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage) as manager:
            manager.restore(run)
            if world.rank == 1 and metric == 0.5:
                run.capture = fail
            manager.save(run, {"loss": metric if world.rank == 1 else 0.5})

    def fail() -> Capture:
        raise ValueError("this tensor cannot be stored")

    ended = job(tmp_path, 3, 0, act=act)
    assert [type(one.error) for one in ended] == [ResumeError, ValueError, ResumeError]
    assert str(ended[0].error) == f"rank 1: ValueError: {ended[1].error}"
    assert committed(tmp_path) == []


@pytest.mark.parametrize("slow", [1, *(pytest.param(rank, marks=pytest.mark.extended) for rank in (0, 2))])
def test_final_save_outwaits_collective_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int) -> None:
    """The save at the end of training waits for slow storage longer than a collective does."""
    for module in (final_save, live_run):
        monkeypatch.setattr(module, "A_WHILE", timedelta(milliseconds=50))
    stall = Fault(lambda: threading.Event().wait(3), operations={"write"}, key=f"*/rank-{slow:05d}.json")

    def run(world: ThreadWorld) -> str:
        storage = FaultyStorage(LocalStorage(tmp_path), [stall] if world.rank == slow else [])
        one = new_run(world)
        with ck.CheckpointManager(storage) as manager:
            manager.restore(one)
            return manager.save_final(one)

    names = results_of(run_ranks(3, run, timeout=timedelta(seconds=1)))
    assert stall.fired == 1
    assert {*names} == {*committed(tmp_path)}


def test_early_part_failure_reaches_rank_0_at_once(tmp_path: Path) -> None:
    """A part that fails before its first byte is told to rank 0 at once."""
    fault = Fault("error", operations={"list"}, key="attempts")

    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(storage, ranks=ck.Ranks(patience=timedelta(hours=1)))
        manager.restore(run)
        return manager.save(run).exception(timedelta(seconds=40))

    ended = results_of(job(tmp_path, 2, 0, faults={1: fault}, act=act))
    assert fault.fired == 1
    assert "rank 1 could not write a part" in str(ended[0])


def test_corruption_in_one_rank_sends_all_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that is corrupt for one rank sends all ranks back to the one before."""
    results_of(job(tmp_path, 2, 7))
    newest = tmp_path / "checkpoints" / committed(tmp_path)[-1] / "rank-00001" / "accumulators-000.safetensors"
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(bytes(data))
    lives = results_of(job(tmp_path, 2, 9))
    assert {one.began for one in lives} == {3}
    assert tuple(one.digest for one in lives) == digests_at(2, 9)
    assert "CORRUPT CHECKPOINT" in caplog.text
    assert "rank 1" in caplog.text


def test_refusal_of_one_rank_is_refusal_of_all(tmp_path: Path) -> None:
    """All ranks refuse what one refuses, before any attempt is opened."""
    results_of(job(tmp_path, 3, 4))

    def act(storage, world, until, **options):
        run = new_run(world)
        if world.rank == 2:
            run.weights = run.weights[:-1]
        ck.CheckpointManager(storage).restore(run)

    ended = job(tmp_path, 3, 0, act=act)
    assert [type(one.error).__name__ for one in ended] == ["StateMismatchError"] * 3
    assert "rank 2" in str(ended[0].error)
    assert "rank 2" in str(ended[1].error)
    assert [one.name for one in (tmp_path / "attempts").iterdir()] == ["000001.json"]


def test_ranks_that_stand_elsewhere_do_not_start(tmp_path: Path) -> None:
    results_of(job(tmp_path, 2, 4))

    def act(storage, world, until, **options):
        run = new_run(world)
        progress = run.progress
        if world.rank == 1:
            run.progress = lambda: progress().model_copy(update={"epoch": 7})
        ck.CheckpointManager(storage).restore(run)

    ended = job(tmp_path, 2, 0, act=act)
    assert all("the ranks do not agree on the position of the run" in str(one.error) for one in ended)
    assert all(isinstance(one.error, ResumeError) for one in ended)
    assert [one.name for one in (tmp_path / "attempts").iterdir()] == ["000001.json"]


def test_lost_rank_ends_start_for_all(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        if world.rank == 1:
            return
        ck.CheckpointManager(storage).restore(new_run(world))

    ended = job(tmp_path, 3, 0, act=act)
    assert [type(one.error) for one in ended] == [RankLostError, type(None), RankLostError]
    assert not (tmp_path / "attempts").exists()


def test_clock_of_rank_0_decides_interval_saves(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        now = [0.0]
        run = new_run(world)
        manager = ck.CheckpointManager(
            storage,
            save=ck.SaveEvery(interval=timedelta(seconds=10)) | ck.SaveEvery(micro_steps=7),
            saving=ck.Saving(when_busy="wait"),
            system=ck.System(monotonic=lambda: now[0]),
        )
        manager.restore(run)
        begun = world.gathers
        saved = []
        for batches in run.train_until(16):
            now[0] += 3.0 if world.rank == 0 else 100.0  # the other's clock would save at each boundary
            if manager.step(run) is not None:
                saved.append(batches)
        manager.close()
        return saved, world.gathers - begun

    (mine, _), (theirs, _) = results_of(job(tmp_path, 2, 0, act=act))
    assert mine == theirs == [4, 7, 12, 14, 16] or mine == theirs == [4, 7, 12, 14]


def test_step_schedule_communicates_only_at_saves(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(
            storage, save=ck.SaveEvery(optimizer_steps=2), preemption=ck.Preemption(then="off")
        )
        manager.restore(run)
        begun, updates = world.gathers, 0
        for _ in run.train_until(7):
            manager.step(run)
            updates = run.progress().updates
        return world.gathers - begun - updates  # the run's own reduction is one of them

    assert results_of(job(tmp_path, 2, 0, act=act)) == [0, 0]


def test_saves_are_reported_in_rank_0_alone(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        reports = []
        run = new_run(world)
        with ck.CheckpointManager(storage, saving=ck.Saving(on_save=reports.append)) as manager:
            manager.restore(run)
            for _ in run.train_until(2):
                manager.save(run)
            manager.save_final(run)
        return [report.checkpoint for report in reports], manager.totals.saves

    (told, saves), (others_told, others_saves) = results_of(job(tmp_path, 2, 0, act=act))
    assert told == committed(tmp_path)
    assert others_told == []
    assert saves == others_saves == 2


def test_later_start_stops_every_rank_of_earlier_attempt(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(
            storage, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")
        ) as manager:
            manager.restore(run)
            for batches in run.train_until(20):
                manager.step(run)
                if batches == 4:
                    manager.wait()  # a part still under way may leave its receipt after the later job has swept
                    world.gather("")
                    if world.rank == 0:
                        results_of(job(tmp_path, 2, 4))
                    world.gather("")

    ended = job(tmp_path, 2, 0, act=act)
    assert [type(one.error).__name__ for one in ended] == ["StaleAttemptError"] * 2
    assert not [*tmp_path.rglob("*-failed")]


def test_replicas_that_differ_are_named(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(storage, ranks=ck.Ranks(check_replicas=True))
        manager.restore(run)
        manager.save(run).result()
        if world.rank == 1:
            run.moments[3] = 7
        for _ in run.train_until(1):
            manager.save(run)

    ended = job(tmp_path, 2, 0, act=act)
    assert all("moments in ranks [1]" in str(one.error) for one in ended)
    assert all(isinstance(one.error, ResumeError) for one in ended)
    assert len(committed(tmp_path)) == 1


def test_replicas_are_compared_at_final_saves(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage, ranks=ck.Ranks(check_replicas=True)) as manager:
            manager.restore(run)
            manager.save_final(run)
            for _ in run.train_until(CYCLE):
                run.moments[3] += world.rank
            manager.save_final(run)

    ended = job(tmp_path, 2, 0, act=act)
    assert all("moments in ranks [1]" in str(one.error) for one in ended)
    assert len(committed(tmp_path)) == 1


def test_ranks_that_rewind_save_their_end(tmp_path: Path) -> None:
    lives = results_of(job(tmp_path, 2, 2 * CYCLE, every=100, final=True, mid_cycle="rewind"))
    assert [one.saved for one in lives] == [[committed(tmp_path)[-1]]] * 2
    again = results_of(job(tmp_path, 2, 0, mid_cycle="rewind"))
    assert tuple(one.restored for one in again) == digests_at(2, 2 * CYCLE)


def test_ranks_know_cycles_begun_at_final_saves(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(
            storage, save=ck.SaveEvery(micro_steps=until), saving=ck.Saving(mid_cycle="rewind")
        ) as manager:
            manager.restore(run)
            for batches in run.train_until(until):
                if batches == CYCLE:
                    manager.save_final(run)
            return manager.step(run)

    assert results_of(job(tmp_path, 2, CYCLE + 2, act=act)) == [None, None]  # its start is stored
    assert committed(tmp_path) == ["a000001-c0000000001-m0000"]


@pytest.mark.parametrize("odd", [{0}, {1}, {0, 1}])
def test_frozen_change_in_one_rank_is_refused(tmp_path: Path, odd: set[int]) -> None:
    """A frozen tensor that changed in one rank only is not put together from both ranks."""

    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage) as manager:
            manager.restore(run)
            manager.save_final(run)
            if world.rank in odd:
                run.embedding[:] = 9
            for _ in run.train_until(1):
                assert manager.save(run).exception() is not None or world.rank not in odd
            return manager.save_final(run)

    ended = job(tmp_path, 2, 0, act=act)
    if len(odd) == 1:
        assert all("embedding in ranks [1]" in str(one.error) for one in ended)
        assert len(committed(tmp_path)) == 1
    else:
        assert {*results_of(ended)} == {committed(tmp_path)[-1]}


def test_different_initial_weights_are_refused_at_first_save(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        run.weights += world.rank
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1)) as manager:
            manager.restore(run)
            for _ in run.train_until(1):
                manager.step(run)

    ended = job(tmp_path, 3, 0, act=act)
    assert all("weights in ranks [1, 2]" in str(one.error) for one in ended)
    assert committed(tmp_path) == []


def test_checkpoint_of_other_world_needs_foldable_state(tmp_path: Path) -> None:
    results_of(job(tmp_path, 2, 4))
    ended = job(tmp_path, 1, 8)
    assert isinstance(ended[0].error, ResumeError)


def test_ranks_with_different_roots_are_refused_at_start(tmp_path: Path) -> None:
    def run(world: ThreadWorld) -> None:
        ck.CheckpointManager(tmp_path / str(world.rank)).restore(new_run(world))

    ended = run_ranks(3, run)
    assert [type(one.error) for one in ended] == [ResumeError] * 3
    assert all("different roots" in str(one.error) for one in ended)
    assert "rank 1" in str(ended[0].error)


def test_replicated_state_is_written_in_equal_shares(tmp_path: Path) -> None:
    """At a boundary every rank writes an equal share of what is replicated."""
    size, elements = 4, 100_000

    def act(storage, world, until, **options):
        run = NumpyRun(world=world, size=elements, accumulation_steps=CYCLE)
        with ck.CheckpointManager(storage) as manager:
            manager.restore(run)
            for _ in run.train_until(CYCLE):
                pass
            manager.save(run).result()

    results_of(job(tmp_path, size, 0, act=act))
    folder = tmp_path / "checkpoints" / committed(tmp_path)[0]
    written = [sum(one.stat().st_size for one in folder.glob(f"rank-{rank:05d}/*")) for rank in range(size)]
    whole = 2 * 4 * elements  # weights and moments; the embedding is frozen, and shared by the attempt's checkpoints
    assert all(abs(one - whole / size) < 0.1 * whole / size for one in written)
    frozen = [one.stat().st_size for one in (tmp_path / "frozen" / "a000001").iterdir()]
    assert len(frozen) == size
    assert all(abs(one - elements) < 0.1 * elements for one in frozen)


def test_copy_of_run_with_many_ranks_resumes(tmp_path: Path) -> None:
    results_of(job(tmp_path / "here", 3, 7))
    here, there = tmp_path / "here", tmp_path / "there"
    forked("-m", "ckptkit", "copy", here, there)
    assert committed(there) == committed(here)
    lives = results_of(job(tmp_path / "there", 3, 12))
    assert {one.began for one in lives} == {6}
    assert tuple(one.digest for one in lives) == digests_at(3, 12)
    rows = ck.CheckpointManager(tmp_path / "there").checkpoints()
    assert [one.size_bytes > 0 for one in rows] == [True] * len(rows)


def test_agree_before_restore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="restore"):
        ck.CheckpointManager(tmp_path).agree(True)


def test_orphaned_parts_of_unstarted_save_are_removed(tmp_path: Path) -> None:
    """What other ranks wrote for a save that rank 0 never began is removed."""
    never = Fault("error", key="no such key")
    failing = Fault("error", operations={"list"}, key="attempts")

    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(
            storage, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait")
        ) as manager:
            manager.restore(run)
            if world.rank == 0:
                storage.inject(failing)
            for _ in run.train_until(4):
                handle = manager.step(run)
                if handle is not None:
                    handle.exception()

    results_of(job(tmp_path, 2, 0, faults={0: never}, act=act))
    assert failing.fired == 1
    assert committed(tmp_path) == ["a000001-c0000000001-m0000"]
    left = sorted(one.name for one in (tmp_path / "checkpoints" / "a000001-c0000000000-m0002").iterdir())
    assert left == ["COMMIT"]


def test_parts_of_a_commit_that_had_landed_go(tmp_path: Path) -> None:
    """Rank 0 learns at the next try that the one before was committed, when the others write their parts of it."""
    never = Fault("error", key="no such key")
    commit = "*-c0000000000-m0002/COMMIT"
    faults = [
        Fault("error", operations={"create"}, key=commit, when="after", times=2),
        Fault("error", operations={"read"}, key=commit, times=2),
    ]

    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1000)) as manager:
            manager.restore(run)
            for fault in faults if world.rank == 0 else ():
                storage.inject(fault)
            for batches in run.train_until(4):
                if batches >= 2:
                    manager.save(run).exception()
                if batches == 2:
                    manager.save(run).exception()

    results_of(job(tmp_path, 2, 0, faults={0: never}, act=act))
    assert [fault.fired for fault in faults] == [2, 2]
    landed = "a000001-c0000000000-m0002"
    assert committed(tmp_path) == [landed, "a000001-c0000000000-m0003", "a000001-c0000000001-m0000"]
    assert [one.name for one in (tmp_path / "checkpoints" / f"{landed}-t02").iterdir()] == ["COMMIT"]
