"""Jobs of many ranks over one run root, as threads of one process: what is saved, by whom, and what comes back."""

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
from support.runs.grown import opened, train
from support.runs.ranks import CYCLE, SIZE, check_whole, committed, digests_at, job, new_run
from support.thread_ranks import Ended, RankLostError, ThreadWorld, results_of, run_ranks

import ckptkit as ck
from ckptkit.checkpoint.read import load
from ckptkit.core.contents import WantedPart
from ckptkit.core.placement import Box
from ckptkit.core.tensors import Leaf
from ckptkit.errors import ResumeError, SaveFailedError, StateMismatchError, StorageError
from ckptkit.manager import run as live_run
from ckptkit.manager.options import ERROR_BUDGET
from ckptkit.storage import LocalStorage, Storage
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun


def test_every_rank_goes_on_with_its_own_bits(tmp_path: Path) -> None:
    for size, stop in (2, 5), (4, 12):
        root = tmp_path / f"{size}"
        results_of(job(root, size, stop))
        lives = results_of(job(root, size, 17, final=True))
        assert {one.began for one in lives} == {stop // 3 * 3}
        assert len({one.checkpoint for one in lives}) == 1
        assert sorted(one.name for one in (root / "attempts").iterdir()) == ["000001.json", "000002.json"]
        assert tuple(one.restored for one in lives) == digests_at(size, stop // 3 * 3)
        assert tuple(one.digest for one in lives) == digests_at(size, 17)
        assert len(set(digests_at(size, 17))) == size  # each has a generator of its own
        assert {one.saved[-1] for one in lives} == {committed(root)[-1]} == {"a000002-c0000000004-m0001"}
        for name in committed(root):
            check_whole(root, name, size)


def test_unwritable_part_voids_save_and_next_succeeds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for loser in (0, 2):
        root, fault = tmp_path / f"{loser}", Fault("error", operations={"write"}, key=f"*m0002/rank-{loser:05d}.json")
        caplog.clear()
        lives = results_of(job(root, 3, 13, faults={loser: fault}, every=2))
        assert fault.fired == 1
        assert "injected failure" in caplog.text
        names = committed(root)
        assert names[-1] == "a000001-c0000000003-m0000"
        for name in names:
            check_whole(root, name, 3)
        assert tuple(one.digest for one in lives) == digests_at(3, 13)
        failed = root / "checkpoints" / "a000001-c0000000000-m0002"
        assert b"void_by" in (failed / "COMMIT").read_bytes()
        assert [one.name for one in failed.iterdir()] == ["COMMIT"]


def test_repeated_save_failures_end_all_ranks_together(tmp_path: Path) -> None:
    fault = Fault("error", operations={"write"}, key="*/rank-00001*", times=None)
    steps: dict[int, int] = {}

    def body(manager, run, world):
        for batches in run.train_until(30):
            steps[world.rank] = batches
            manager.step(run)
            manager.wait()  # rank 0 knows first, and must not leave alone
        raise AssertionError("it went on")

    ended = ranks(tmp_path, 3, body, faults={1: fault}, save=EVERY_STEP, saving=ck.Saving(when_busy="wait"))
    assert [type(one.error) for one in ended] == [SaveFailedError] * 3
    assert "rank 1 could not write" in str(ended[0].error)
    assert "rank 0: a background save failed (3 in a row)" in str(ended[2].error)
    assert len(set(steps.values())) == 1
    assert fault.fired >= 3
    assert committed(tmp_path) == []


def test_final_save_of_ranks_forgives_earlier_failures(tmp_path: Path) -> None:
    """The one that was too many is known before the final save, and the storage is well again."""
    for is_preempted in (False, True):
        root = tmp_path / f"{is_preempted}"
        fault = Fault("error", operations={"write"}, key="*/rank-00000*", times=ERROR_BUDGET)

        def body(manager, run, world, is_preempted=is_preempted):
            for _ in run.train_until(ERROR_BUDGET):
                manager.save(run).exception()
                manager.wait()
            run.train_step()
            if is_preempted:
                manager.step(run)
                assert manager.preempted
            else:
                manager.save_final(run)

        preemption = ck.Preemption(then="return", when=lambda is_preempted=is_preempted: is_preempted)
        results_of(ranks(root, 2, body, faults={0: fault}, preemption=preemption))
        assert fault.fired == ERROR_BUDGET
        assert committed(root) == ["a000001-c0000000001-m0000"]


def test_stalled_rank_prevents_commit_within_patience(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    results_of(job(tmp_path, 2, 4))
    before = committed(tmp_path)
    gate = threading.Event()
    stall = Fault(lambda: gate.wait(30), operations={"write"}, key="*a000002*/rank-00001.json")

    def body(manager, run, world):
        train(run, 5)
        error = manager.save(run).exception(timedelta(seconds=40))
        if world.rank == 0:
            gate.set()
        return error

    patience = ck.Ranks(patience=timedelta(milliseconds=200))
    ended = results_of(ranks(tmp_path, 2, body, faults={1: stall}, save=SELDOM, ranks=patience))
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


def changed(run: NumpyRun, change: Callable[[list[Leaf]], list[Leaf]]) -> None:
    """Let the run give other leaves."""
    taken = run.capture
    run.capture = lambda: replace(capture := taken(), leaves=tuple(change(list(capture.leaves))))


def respecified(run: NumpyRun, name: str, **changes: Any) -> None:
    """Let a leaf of the run have other properties."""

    def change(leaves: list[Leaf]) -> list[Leaf]:
        return [leaf._replace(spec=replace(leaf.spec, **changes)) if leaf.name == name else leaf for leaf in leaves]

    changed(run, change)


OTHER_LEAVES = "order, names, dtypes, shapes or placements"
# In one rank alone; ranks whose leaves differ would share out the work differently.
DISAGREEMENTS: list[tuple[str, Callable[[NumpyRun], None], str]] = [
    ("progress", lambda run: setattr(run, "batches", run.batches + 1), "no longer in step"),
    ("k", lambda run: setattr(run, "_accumulation_steps", 8), "no longer in step"),
    ("dtype", lambda run: setattr(run, "weights", run.weights.astype("float64")), "another model"),
    ("lifetime", lambda run: respecified(run, "embedding", lifetime="micro"), OTHER_LEAVES),
    ("placement", lambda run: respecified(run, "weights", placement=Box((SIZE,), (0,))), OTHER_LEAVES),
    ("order", lambda run: changed(run, lambda leaves: leaves[::-1]), OTHER_LEAVES),
    ("weights", lambda run: setattr(run, "weights", run.weights + 1), "weights in ranks [1]"),
]


def test_ranks_that_disagree_save_nothing(tmp_path: Path) -> None:
    results_of(job(tmp_path, 2, 4))
    before = len(committed(tmp_path))
    for what, change, words in DISAGREEMENTS:

        def body(manager, run, world, change=change):
            train(run, run.batches + 1)
            if world.rank == 1:
                change(run)
            manager.save(run)

        all_refuse(tmp_path, ranks(tmp_path, 2, body, save=SELDOM), words, before, what)


def ranks(root: Path, size: int, body: Callable[..., Any], *, faults: Any = None, **options: Any) -> list[Ended[Any]]:
    """A job that restores, and ends with what ``body`` does with each rank's manager, run and world."""

    def act(storage: Storage, world: ThreadWorld, until: int) -> Any:
        run = new_run(world)
        with ck.CheckpointManager(storage, **options) as manager:
            manager.restore(run)
            return body(manager, run, world)

    return job(root, size, 0, faults=faults, act=act)


def all_refuse(root: Path, ended: list[Ended[Any]], words: str, commits: int = 0, what: str = "") -> None:
    """Every rank ended by the same refusal, and nothing more was committed."""
    assert [type(one.error) for one in ended] == [ResumeError] * len(ended), what
    assert all(words in str(one.error) for one in ended), (what, words)
    assert len(committed(root)) == commits, what


EVERY_STEP = ck.SaveEvery(micro_steps=1)
SELDOM = ck.SaveEvery(micro_steps=100)


BOXES = [
    ([Box((SIZE,), (0,))] * 2, "store something twice"),
    ([Box((2 * SIZE,), (0,)), Box((2 * SIZE,), (SIZE - 1,))], "store something twice"),
    ([Box((3 * SIZE,), (0,)), Box((3 * SIZE,), (SIZE,))], "leave something out"),
    ([Box((2 * SIZE,), (0,)), Box((2 * SIZE,), (2 * SIZE,))], "are not inside the tensor"),
    ([Box((SIZE,), (0,), replica=1)] * 2, "leave something out"),
    ([Box((2 * SIZE,), (SIZE,)), Box((2 * SIZE,), (0,))], None),
    ([Box((SIZE,), (0,)), Box((SIZE,), (0,), replica=1)], None),
]


def test_incomplete_or_overlapping_parts_are_not_saved(tmp_path: Path) -> None:
    for number, (boxes, message) in enumerate(BOXES):

        def body(manager, run, world, boxes=boxes):
            respecified(run, "weights", placement=boxes[world.rank])
            return manager.save_final(run)

        root = tmp_path / f"{number}"
        ended = ranks(root, 2, body)
        if message is not None:
            all_refuse(root, ended, message)
        else:
            (name,) = {*results_of(ended)}
            check_whole(root, name, 2)


def test_frozen_parts_of_ranks_can_be_read(tmp_path: Path) -> None:
    """Block by block, also from the second checkpoint on, which writes them no more."""

    def body(manager, run, world):
        respecified(run, "embedding", placement=Box((2 * SIZE,), (SIZE * world.rank,)))
        names = [manager.save(run).result()]
        for _ in run.train_until(1):
            names.append(manager.save_final(run))
        return names, run.embedding

    (names, first), (_, second) = results_of(ranks(tmp_path, 2, body))
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

    def body(manager, run, world):
        saves = [manager.step(run) is not None for _ in run.train_until(2)]
        go.set()
        return saves

    assert results_of(ranks(tmp_path, 2, body, faults={1: fault}, save=EVERY_STEP)) == [[True, False]] * 2
    assert committed(tmp_path) == ["a000001-c0000000000-m0001"]
    assert caplog.text.count("a save is due and skipped") == 2


def test_metrics_of_rank_0_make_a_second_checkpoint(tmp_path: Path) -> None:
    def body(manager, run, world):
        mine = {"loss": float(world.rank)}
        names = [manager.save(run, metrics).result() for metrics in ({}, mine, {}, mine)]
        return [*names, manager.save_final(run, mine)]

    name = "a000001-c0000000000-m0000"
    assert results_of(ranks(tmp_path, 2, body)) == [[name, *[f"{name}-t02"] * 4]] * 2
    assert committed(tmp_path) == [name, f"{name}-t02"]
    check_whole(tmp_path, f"{name}-t02", 2)


def _taken_over(root: Path) -> None:
    results_of(job(root, 2, 4))


def final_after(root: Path, disturb: Callable[[Path], None]) -> list[Ended[str]]:
    """A job whose last state is committed, then ``disturb`` is called, and the final save of that state follows."""

    def body(manager, run, world):
        run.train_step()
        manager.save(run).result()
        manager.wait()
        world.gather("")
        if world.rank == 0:
            disturb(root)
        world.gather("")
        return manager.save_final(run)

    return ranks(root, 2, body, save=EVERY_STEP)


def test_ranks_save_lost_commit_again(tmp_path: Path) -> None:
    for number, (disturb, name) in enumerate([(lambda root: None, ""), (shutil.rmtree, "-t02")]):
        root = tmp_path / f"{number}"
        saved = results_of(final_after(root, disturb))
        assert saved == [f"a000001-c0000000000-m0001{name}"] * 2
        assert committed(root) == saved[:1]
        check_whole(root, saved[0], 2)


def test_committed_moment_hides_takeover_from_no_rank(tmp_path: Path) -> None:
    ended = final_after(tmp_path, _taken_over)
    assert [type(one.error).__name__ for one in ended] == ["StaleAttemptError"] * 2


@pytest.mark.parametrize("failures", [1, ERROR_BUDGET], ids=["save", "last try of the final save"])
def test_rank_whose_part_failed_names_the_takeover(tmp_path: Path, failures: int) -> None:
    def swept() -> None:
        if fault.fired == failures:
            _taken_over(tmp_path)
        raise StorageError("the folder is gone")

    def body(manager, run, world):
        run.train_step()
        return manager.save(run).result() if failures == 1 else manager.save_final(run)

    fault = Fault(swept, operations={"write"}, key="*m0001*/rank-00001.json", times=failures)
    ended = ranks(tmp_path, 2, body, faults={1: fault}, save=SELDOM)
    assert fault.fired == failures
    assert [type(one.error).__name__ for one in ended] == ["StaleAttemptError"] * 2


def test_final_save_outwaits_collective_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_run, "A_WHILE", timedelta(milliseconds=50))
    stall = Fault(lambda: threading.Event().wait(3), operations={"write"}, key="*/rank-00001.json")

    def run(world: ThreadWorld) -> str:
        storage = FaultyStorage(LocalStorage(tmp_path), [stall] if world.rank == 1 else [])
        one = new_run(world)
        with ck.CheckpointManager(storage) as manager:
            manager.restore(one)
            return manager.save_final(one)

    names = results_of(run_ranks(3, run, timeout=timedelta(seconds=1)))
    assert stall.fired == 1
    assert {*names} == {*committed(tmp_path)}


def test_early_part_failure_reaches_rank_0_at_once(tmp_path: Path) -> None:
    fault = Fault("error", operations={"list"}, key="attempts")
    save = lambda manager, run, world: manager.save(run).exception(timedelta(seconds=40))  # noqa: E731
    ended = results_of(ranks(tmp_path, 2, save, faults={1: fault}, ranks=ck.Ranks(patience=timedelta(hours=1))))
    assert fault.fired == 1
    assert "rank 1 could not write a part" in str(ended[0])


def test_corruption_in_one_rank_sends_all_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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


class ByClock:
    """A policy of the user's own, which says nothing about clocks."""

    def due(self, progress, since_last_save):
        return since_last_save >= timedelta(seconds=15)


def test_clock_of_rank_0_decides_interval_saves(tmp_path: Path) -> None:
    every_7 = ck.SaveEvery(micro_steps=7)
    interval = ck.SaveEvery(interval=timedelta(seconds=10)) | every_7
    dear = ck.SaveEvery(interval=timedelta(seconds=10), overhead=0.01) | every_7
    for number, (policy, expected) in enumerate([(interval, [4, 7, 12, 14]), (ByClock(), [8]), (dear, [7, 14])]):
        now = {0: 0.0, 1: 0.0}

        def body(manager, run, world, now=now):
            saved = []
            manager._run.results.stall_seconds.append(1.0)  # 1 % of the time are 100 s
            for batches in run.train_until(15):
                now[world.rank] += 3.0 if world.rank == 0 else 100.0  # the other's clock would save at each boundary
                if manager.step(run) is not None:
                    saved.append(batches)
            return saved

        monotonic = lambda now=now: now[int(threading.current_thread().name == "rank-1")]  # noqa: E731
        options = {"saving": ck.Saving(when_busy="wait"), "system": ck.System(monotonic=monotonic)}
        saved = results_of(ranks(tmp_path / f"{number}", 2, body, save=policy, **options))
        assert saved == [expected] * 2, policy


def test_step_schedule_communicates_only_at_saves(tmp_path: Path) -> None:
    def body(manager, run, world):
        begun, updates = world.gathers, 0
        for _ in run.train_until(7):
            manager.step(run)
            updates = run.progress().updates
        return world.gathers - begun - updates  # the run's own reduction is one of them

    options = {"save": ck.SaveEvery(optimizer_steps=2), "preemption": ck.Preemption(then="off")}
    assert results_of(ranks(tmp_path, 2, body, **options)) == [0, 0]


def test_later_start_stops_every_rank_of_earlier_attempt(tmp_path: Path) -> None:
    def body(manager, run, world):
        for batches in run.train_until(20):
            manager.step(run)
            if batches == 4:
                manager.wait()  # a part still under way may leave its receipt after the later job has swept
                world.gather("")
                if world.rank == 0:
                    _taken_over(tmp_path)
                world.gather("")

    ended = ranks(tmp_path, 2, body, save=ck.SaveEvery(micro_steps=2), saving=ck.Saving(when_busy="wait"))
    assert [type(one.error).__name__ for one in ended] == ["StaleAttemptError"] * 2
    assert not [*tmp_path.rglob("*-failed")]


def test_replicas_that_differ_are_named(tmp_path: Path) -> None:
    """At background saves and at final ones."""
    for save in (lambda manager, run: manager.save(run).result(), ck.CheckpointManager.save_final):

        def body(manager, run, world, save=save):
            save(manager, run)
            run.moments[3] += 7 * world.rank
            train(run, CYCLE)
            save(manager, run)

        root = tmp_path / f"{save}"
        ended = ranks(root, 2, body, ranks=ck.Ranks(check_replicas=True))
        all_refuse(root, ended, "moments in ranks [1]", 1)


def test_frozen_change_in_one_rank_is_refused(tmp_path: Path) -> None:
    for odd in ({0}, {1}, {0, 1}):

        def body(manager, run, world, odd=odd):
            manager.save_final(run)
            if world.rank in odd:
                run.embedding[:] = 9
            for _ in run.train_until(1):
                assert manager.save(run).exception() is not None or world.rank not in odd
            return manager.save_final(run)

        root = tmp_path / f"{odd}"
        ended = ranks(root, 2, body)
        if len(odd) == 1:
            assert all("embedding in ranks [1]" in str(one.error) for one in ended)
            assert len(committed(root)) == 1
        else:
            assert {*results_of(ended)} == {committed(root)[-1]}


def test_checkpoint_of_other_world_needs_foldable_state(tmp_path: Path) -> None:
    results_of(job(tmp_path, 2, 4))
    ended = job(tmp_path, 1, 8)
    assert isinstance(ended[0].error, ResumeError)


def test_ranks_that_cannot_start_together_do_not_start(tmp_path: Path) -> None:
    """Where a state does not fit in one of them, where one stands elsewhere, where one is gone."""

    def smaller(run):
        run.weights = run.weights[:-1]

    def elsewhere(run):
        progress = run.progress
        run.progress = lambda: replace(progress(), epoch=7)

    def gone(run):
        raise ZeroDivisionError

    results_of(job(tmp_path, 3, 4))
    for change, error, words in (
        (smaller, StateMismatchError, "rank 2"),
        (elsewhere, ResumeError, "the ranks do not agree on the position of the run"),
        (gone, RankLostError, ""),
    ):

        def act(storage, world, until, change=change):
            run = new_run(world)
            if world.rank == 2:
                change(run)
            ck.CheckpointManager(storage).restore(run)

        ended = job(tmp_path, 3, 0, act=act)
        assert [type(one.error) for one in ended[:2]] == [error] * 2, words
        assert all(words in str(one.error) for one in ended)
        assert [one.name for one in (tmp_path / "attempts").iterdir()] == ["000001.json"]
