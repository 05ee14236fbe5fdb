"""Real ranks, killed and started again: every one of them goes on with the bits that it would have had.

Launches of ``msrun`` in chains, because each takes some 20 s: what one leaves, the next goes on from.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from exactness.equivalence.comparison import Line, assert_equal, dealt, read_trace, steps

from ckptkit.run.catalog import list_checkpoints
from ckptkit.storage import open_storage
from multirank.msrun import life as life_module
from multirank.msrun.launch import Launch, msrun
from multirank.msrun.life import Kill, Life

SCRIPT = Path(life_module.__file__)


def lived(folder: Path, life: Life) -> tuple[list[dict], list[list[Line]]]:
    """A life to the end: what each rank reported, and its trace."""
    reports = msrun(life.world_size, SCRIPT, folder, life.dumps())
    return reports, traces(folder, life.world_size)


def killed(folder: Path, life: Life) -> list[list[Line]]:
    """A life that is cut off."""
    with Launch(life.world_size, SCRIPT, folder, life.dumps()) as job:
        job.until_all_ranks_are_dead()
        assert not list(folder.glob("rank-*.json")), job.said()
    return traces(folder, life.world_size)


def traces(folder: Path, ranks: int) -> list[list[Line]]:
    paths = [folder / f"trace-{rank}.jsonl" for rank in range(ranks)]
    return [read_trace(path) if path.exists() else [] for path in paths]


def newest(root: str) -> tuple[str, int]:
    found = list_checkpoints(open_storage(root))
    last = max(found, key=lambda info: info.progress.batches_delivered)
    return last.name, last.progress.batches_delivered


Whole = Callable[[int], tuple[list[dict], list[list[Line]]]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Uninterrupted trainings without ckptkit's callback, of as many ranks as are asked for."""
    folder = tmp_path_factory.mktemp("whole")
    return functools.cache(lambda ranks: lived(folder / str(ranks), Life(ranks)))


def hold_chain(
    folder: Path, ranks: int, root: str, whole: tuple[list[dict], list[list[Line]]], kills: list[Kill]
) -> None:
    """Kill lives one after the other, then live to the end; every micro-step of every rank equals the reference's."""
    reports, reference = whole
    compared = 0
    for number, kill in enumerate([*kills, None]):
        before = newest(root) if number else (None, 0)
        life = Life(ranks, root, kill=kill)
        if kill is None:
            last, found = lived(folder / f"life-{number}", life)
            assert [one["checkpoint"] for one in last] == [before[0]] * ranks  # all from the same one
            assert [one["weights"] for one in last] == [one["weights"] for one in reports]
        else:
            found = killed(folder / f"life-{number}", life)
            assert newest(root)[1] in (kill.at - 1, kill.at)
            if kill.moment == "saving":
                assert newest(root)[1] == kill.at - 1  # a part is missing, so nothing is committed
            if kill.moment == "preempted":  # in the first micro-step of a life, after which the ranks meet
                assert newest(root)[1] == kill.at
                assert [steps(one)[-1] for one in found] == [kill.at] * ranks
        for rank in range(ranks):
            if found[rank]:
                assert steps(found[rank])[0] == before[1] + 1
            compared += assert_equal(reference[rank], found[rank])
    assert compared >= ranks * (len(steps(reference[0])) - len(kills))


def hold_elastic(
    folder: Path, root: str, life: Life, before: list[list[Line]], *, begun: int, expected: list[dict]
) -> None:
    """Go on in another world: the same samples in the same order, and weights equal but for the order of sums."""
    reports, after = lived(folder, life)
    assert [one["checkpoint"] for one in reports] == [life.checkpoint] * life.world_size
    assert dealt(after) == dealt(before)[begun * len(before) * life_module.MICRO_BATCH :]
    assert all(one["weights"] == reports[0]["weights"] for one in reports)
    np.testing.assert_allclose(reports[0]["weights"], expected[0]["weights"], rtol=2e-5, atol=1e-6)


def name_at(root: str, batches: int) -> str:
    return next(
        info.name
        for info in list_checkpoints(open_storage(root))
        if info.progress is not None and info.progress.batches_delivered == batches
    )


def test_a_killed_rank_resumes_exactly(tmp_path: Path, whole: Whole) -> None:
    hold_chain(tmp_path, 2, str(tmp_path / "run"), whole(2), [Kill("saving", 11, (0,))])


@pytest.mark.extended
def test_two_killed_ranks_resume_as_two_and_four(tmp_path: Path, whole: Whole) -> None:
    root = str(tmp_path / "run")
    kills = [Kill("step", 6, (1,)), Kill("saving", 11, (0,)), Kill("preempted", 11, (1,)), Kill("step", 20, (0, 1))]
    hold_chain(tmp_path, 2, root, whole(2), kills)
    for at, place in ((8, "boundary"), (6, "mid-cycle")):
        life = Life(4, root, checkpoint=name_at(root, at), elastic=True)
        hold_elastic(tmp_path / place, root, life, whole(2)[1], begun=at, expected=whole(2)[0])


@pytest.mark.extended
@pytest.mark.usefixtures("moto_in_environment")
def test_four_killed_ranks_resume_from_bucket_as_two(tmp_path: Path, whole: Whole, bucket) -> None:
    root = f"s3://{bucket.name}/run"
    hold_chain(tmp_path, 4, root, whole(4), [Kill("step", 3, (2,)), Kill("saving", 7, (3,))])
    for at, place in ((4, "boundary"), (5, "mid-cycle")):
        life = Life(2, root, checkpoint=name_at(root, at), elastic=True)
        hold_elastic(tmp_path / place, root, life, whole(4)[1], begun=at, expected=whole(4)[0])
