"""What a save, a start and a removal ask of an object store in jobs of up to 4,096 ranks: counted, not estimated.

The code is the product's, down to the calls of botocore's client; the store and the clock are simulated.
"""

import functools
import math
from pathlib import Path

import pytest

from benchmarks.scale.costs import SIZES, Row, commits, median, rows
from benchmarks.scale.job import KEPT, Commit, Job
from benchmarks.scale.network import Line, Network
from benchmarks.scale.storage import PAGE
from ckptkit.core import worker
from ckptkit.run.catalog import latest_checkpoint, list_rows

FILES = 5  # of a rank: three shards, its document, its receipt
LARGEST = SIZES[-1]


QUICK = [size for size in SIZES if size <= 64]
each_share = pytest.mark.parametrize(
    "sizes", [QUICK, pytest.param([size for size in SIZES if size > 64], marks=pytest.mark.extended)], ids=["64", "all"]
)


@functools.cache
def saved(ranks: int) -> tuple[Job, list[Commit]]:
    job = Job(ranks)
    return job, commits(job, 5 if ranks == LARGEST else 20)


@each_share
def test_requests_of_a_save_hardly_depend_on_the_number_of_ranks(sizes):
    for ranks in sizes:
        job, saves = saved(ranks)
        newest = latest_checkpoint(job.storage)
        assert newest is not None
        assert newest.name == str(saves[0].name)
        assert median(saves) <= 10.0, ranks
        if ranks > 1:
            # A look at the attempts and at its own document; of each file whether it is there, and the file.
            asked = {tuple(sorted(part.kinds.items())) for save in saves for part in save.others}
            assert asked == {(("get", FILES + 1), ("list", 1), ("put", FILES))}, ranks
        for save in saves:
            assert save.leader.seconds > max((part.seconds for part in save.others), default=0.0)
            # Of rank 0: its own four files, the manifest and COMMIT, its attempt twice, and no file of another rank.
            kinds = save.leader.kinds
            assert ranks == 1 or (kinds["get"], kinds["put"], kinds["delete"]) == (7, 6, 0), ranks
            assert not [one for one in save.leader.requests if "/rank-" in one.key and "/rank-00000" not in one.key]
            walked = [one for one in save.leader.requests if one.key == f"{save.name.folder}/"]
            # Rank 0 has no receipt; the manifest is not there yet.
            assert ranks == 1 or len(walked) == math.ceil((FILES * ranks - 1) / PAGE), ranks


@pytest.mark.parametrize("ranks", [8, pytest.param(512, marks=pytest.mark.extended)])
def test_what_else_a_job_asks_for(ranks):
    job = Job(ranks)
    *_, last = (job.save() for _ in range(KEPT + 1))
    removed = Row.of(ranks, "", last.after)
    files = FILES * ranks - 1 + 2  # the manifest and COMMIT
    assert removed.delete == files  # one request each
    newest = Row.of(ranks, "", job.measure(lambda: latest_checkpoint(job.storage)))
    assert (newest.get, newest.listed) == (3, 2)  # COMMIT, its attempt, the manifest
    listed = Row.of(ranks, "", job.measure(lambda: list_rows(job.storage, 20)))
    assert listed.get == 2 * KEPT + 1  # their manifests, their tokens, and a document of the attempt
    assert listed.listed == math.ceil(KEPT * files / PAGE) + 1

    said: list[str] = []
    leader = Row.of(ranks, "", job.measure(lambda: job.restart(said)))
    other = Row.of(ranks, "", job.measure(lambda: job.follow(ranks - 1, said)))
    # The own document, sums and generator, a piece of what is replicated from every rank, and the attempt.
    assert (other.get, other.listed) == (ranks + 4, 0)
    assert max(leader.seconds, other.seconds) < 10.0  # small files come beside each other
    assert leader.get - (other.get - 1) - ranks < 16  # every rank's document, and what a job of one reads, too


def test_sweep_costs_one_request_per_file():
    job = Job(64)
    job.save()
    job.leave_a_part()
    job.restart()
    swept = Row.of(64, "", job.measure(job.sweep))
    assert (swept.get, swept.put, swept.delete) == (2, 1, FILES * 63)


def test_page_states_these_request_counts():
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text(encoding="utf-8")
    told = [row for row in rows(8, 20) if isinstance(row, Row) and "the same" not in row.what]
    assert len(told) == 8
    for row in told:
        assert f"| {row.what} | {row.get + row.put + row.listed + row.delete} |" in page


def test_pool_requests_take_time_concurrently():
    network = Network(1)
    worker.each_of(range(640), lambda number: network.send("get", str(number)))
    beside = network.now()
    assert len(network.line.requests) == 640
    network.become(Line())
    for number in range(640):
        network.send("get", str(number))
    assert beside < network.now() / 20
