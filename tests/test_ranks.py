"""Jobs of many ranks over one run root, as threads of one process: what is saved, by whom, and what comes back."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ranks.job import CYCLE, SIZE, check_whole, committed, digests_at, job, new_run

import ckptkit as ck
from ckptkit import manager as manager_module
from ckptkit import orders
from ckptkit.contents import Capture
from ckptkit.errors import ResumeError, SaveFailedError
from ckptkit.placement import Box
from ckptkit.storage.local import LocalStorage
from ckptkit.tensors import Leaf
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.ranks import RankLostError, ThreadWorld, results_of, run_ranks
from ckptkit.testing.state import NumpyRun


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


def test_all_ranks_restore_the_same_checkpoint_and_open_one_attempt(tmp_path: Path) -> None:
    results_of(job(tmp_path, 3, 7))
    lives = results_of(job(tmp_path, 3, 10))
    assert {one.checkpoint for one in lives} == {"a000001-c0000000001-m0002"}
    assert sorted(one.name for one in (tmp_path / "attempts").iterdir()) == ["000001.json", "000002.json"]


def test_the_end_of_training_is_committed_when_every_rank_has_returned(tmp_path: Path) -> None:
    lives = results_of(job(tmp_path, 3, 10, final=True))
    assert {one.saved[-1] for one in lives} == {"a000001-c0000000002-m0002"}
    assert committed(tmp_path)[-1] == "a000001-c0000000002-m0002"


@pytest.mark.parametrize("loser", [0, 1, 2])
def test_a_part_that_cannot_be_written_fails_the_save_of_all_and_the_next_one_works(
    tmp_path: Path, loser: int, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_save_that_fails_too_often_ends_every_rank_at_the_same_micro_step(tmp_path: Path) -> None:
    fault = Fault("error", operations={"write"}, key="*/rank-00001*", times=None)
    steps: dict[int, int] = {}

    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=1), when_busy="wait")
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


def test_a_rank_that_stalls_means_no_commit_and_a_clear_error_within_the_patience(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    results_of(job(tmp_path, 2, 4))
    before = committed(tmp_path)
    gate = threading.Event()

    def wait() -> None:
        assert gate.wait(30)

    stall = Fault(wait, operations={"write"}, key="*a000002*/rank-00001.json")

    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(
            storage, save=ck.SaveEvery(micro_steps=100), rank_patience=timedelta(milliseconds=200)
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


@pytest.mark.parametrize("what", ["progress", "k", "model"])
def test_ranks_that_disagree_save_nothing_and_all_say_so(tmp_path: Path, what: str) -> None:
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
    words = "another model" if what == "model" else "come apart"
    assert all(words in str(one.error) for one in ended)
    assert committed(tmp_path) == before


def _thawed(leaves: list[Leaf]) -> list[Leaf]:
    return [_with(one, lifetime="micro") if one.name == "embedding" else one for one in leaves]


def _cut(leaves: list[Leaf]) -> list[Leaf]:
    return [_with(one, placement=Box((SIZE,), (0,))) if one.name == "weights" else one for one in leaves]


def _with(leaf: Leaf, **changes: Any) -> Leaf:
    return leaf._replace(spec=replace(leaf.spec, **changes))


@pytest.mark.parametrize("twist", [_thawed, _cut, lambda leaves: leaves[::-1]], ids=["thawed", "cut", "reversed"])
def test_ranks_that_would_share_the_work_out_differently_save_nothing(
    tmp_path: Path, twist: Callable[[list[Leaf]], list[Leaf]]
) -> None:
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
        ([Box((SIZE,), (0,), replica=1)] * 2, "leave something out"),
        ([Box((2 * SIZE,), (SIZE,)), Box((2 * SIZE,), (0,))], None),
        ([Box((SIZE,), (0,)), Box((SIZE,), (0,), replica=1)], None),
    ],
)
def test_parts_that_do_not_make_up_the_whole_are_not_saved(
    tmp_path: Path, boxes: list[Box], message: str | None
) -> None:
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


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_the_end_of_training_waits_for_slow_storage_longer_than_a_collective_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    for module in (manager_module, orders):
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


def test_a_part_that_fails_before_its_first_byte_is_told_to_rank_0_at_once(tmp_path: Path) -> None:
    fault = Fault("error", operations={"list"}, key="attempts")

    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(storage, rank_patience=timedelta(hours=1))
        manager.restore(run)
        return manager.save(run).exception(timedelta(seconds=40))

    ended = results_of(job(tmp_path, 2, 0, faults={1: fault}, act=act))
    assert fault.fired == 1
    assert "rank 1 could not write a part" in str(ended[0])


def test_a_checkpoint_that_is_corrupt_for_one_rank_sends_all_back_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_what_one_rank_refuses_all_refuse_before_any_attempt_is_opened(tmp_path: Path) -> None:
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


def test_a_rank_that_is_gone_ends_a_start_for_all(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        if world.rank == 1:
            return
        ck.CheckpointManager(storage).restore(new_run(world))

    ended = job(tmp_path, 3, 0, act=act)
    assert [type(one.error) for one in ended] == [RankLostError, type(None), RankLostError]
    assert not (tmp_path / "attempts").exists()


def test_saves_by_the_clock_are_agreed_at_boundaries_by_rank_0s(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        now = [0.0]
        run = new_run(world)
        manager = ck.CheckpointManager(
            storage,
            save=ck.SaveEvery(interval=timedelta(seconds=10)) | ck.SaveEvery(micro_steps=7),
            when_busy="wait",
            monotonic=lambda: now[0],
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


def test_by_step_number_nothing_is_said_but_at_a_save(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(storage, save=ck.SaveEvery(optimizer_steps=2), on_preempt="off")
        manager.restore(run)
        begun, updates = world.gathers, 0
        for _ in run.train_until(7):
            manager.step(run)
            updates = run.progress().updates
        return world.gathers - begun - updates  # the run's own reduction is one of them

    assert results_of(job(tmp_path, 2, 0, act=act)) == [0, 0]


def test_a_later_start_stops_every_rank_of_the_earlier_one(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=2), when_busy="wait") as manager:
            manager.restore(run)
            for batches in run.train_until(20):
                manager.step(run)
                if batches == 4:
                    world.gather("")
                    if world.rank == 0:
                        results_of(job(tmp_path, 2, 4))
                    world.gather("")

    ended = job(tmp_path, 2, 0, act=act)
    assert [type(one.error).__name__ for one in ended] == ["StaleAttemptError"] * 2


def test_replicas_that_differ_are_named(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        run = new_run(world)
        manager = ck.CheckpointManager(storage, check_replicas=True)
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


@pytest.mark.parametrize("odd", [{0}, {1}, {0, 1}])
def test_what_was_declared_frozen_and_changed_in_one_rank_is_not_put_together_of_both(
    tmp_path: Path, odd: set[int]
) -> None:
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


def test_ranks_that_began_with_different_weights_are_told_so_at_their_first_save(tmp_path: Path) -> None:
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


def test_a_mirror_is_refused_for_many_ranks(tmp_path: Path) -> None:
    def act(storage, world, until, **options):
        ck.CheckpointManager(storage, mirror=tmp_path / "mirror").restore(new_run(world))

    ended = job(tmp_path / "root", 2, 0, act=act)
    assert all("one rank so far" in str(one.error) for one in ended)


def test_a_checkpoint_of_another_world_is_refused_by_a_state_that_cannot_fold(tmp_path: Path) -> None:
    results_of(job(tmp_path, 2, 4))
    ended = job(tmp_path, 1, 8)
    assert isinstance(ended[0].error, ResumeError)


def test_ranks_with_different_roots_are_told_so_at_the_start(tmp_path: Path) -> None:
    def run(world: ThreadWorld) -> None:
        ck.CheckpointManager(tmp_path / str(world.rank)).restore(new_run(world))

    ended = run_ranks(3, run)
    assert [type(one.error) for one in ended] == [ResumeError] * 3
    assert all("different roots" in str(one.error) for one in ended)
    assert "rank 1" in str(ended[0].error)


def test_at_a_boundary_every_rank_writes_its_share_of_what_is_replicated(tmp_path: Path) -> None:
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


def test_a_copy_of_a_run_of_many_ranks_goes_on(tmp_path: Path) -> None:
    results_of(job(tmp_path / "here", 3, 7))
    here, there = tmp_path / "here", tmp_path / "there"
    subprocess.run([sys.executable, "-m", "ckptkit", "copy", str(here), str(there)], check=True, timeout=60)
    assert committed(there) == committed(here)
    lives = results_of(job(tmp_path / "there", 3, 12))
    assert {one.began for one in lives} == {6}
    assert tuple(one.digest for one in lives) == digests_at(3, 12)
    rows = ck.CheckpointManager(tmp_path / "there").checkpoints()
    assert [one.size_bytes > 0 for one in rows] == [True] * len(rows)


def test_nobody_can_be_asked_before_it_is_known_who_there_is(tmp_path: Path) -> None:
    with pytest.raises(ResumeError, match="restore"):
        ck.CheckpointManager(tmp_path).agree(True)


def test_what_others_wrote_for_a_save_that_rank_0_never_began_is_removed(tmp_path: Path) -> None:
    never = Fault("error", key="no such key")
    failing = Fault("error", operations={"list"}, key="attempts")

    def act(storage, world, until, **options):
        run = new_run(world)
        with ck.CheckpointManager(storage, save=ck.SaveEvery(micro_steps=2), when_busy="wait") as manager:
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
