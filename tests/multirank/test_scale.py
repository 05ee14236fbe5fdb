"""What a save, a start and a removal ask of an object store in jobs of up to 4,096 ranks: counted, not estimated.

The code is the product's, down to the calls of botocore's client; the store and the clock are simulated.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from pathlib import Path

import pytest

from benchmarks.scale.costs import SIZES, Row, commits, median, rows
from benchmarks.scale.job import KEPT, Commit, Job
from benchmarks.scale.network import Line, Network
from benchmarks.scale.storage import PAGE, Objects, storage_over
from ckptkit.core import worker
from ckptkit.run.catalog import latest_checkpoint, list_rows
from ckptkit.storage.s3.options import CONNECTIONS, S3Options, connect

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


@pytest.mark.extended
def test_rank_0_requests_grow_little_with_ranks():
    asked = {ranks: statistics.median(len(one.leader.requests) for one in saved(ranks)[1]) for ranks in (8, LARGEST)}
    assert asked[LARGEST] < 6 * asked[8], asked
    assert asked[LARGEST] < LARGEST / 32, asked


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


def test_listings_come_in_pages_and_hold_everything():
    network = Network(4)
    objects = Objects(network)
    rng = random.Random(5)
    keys = {f"run/{rng.randrange(40):02d}/{rng.randrange(400)}" for _ in range(3000)}
    keys |= {f"run/file{number}" for number in range(1500)}
    for key in keys:
        objects.put(key, b"x", 0.0)
    storage = storage_over(objects)
    assert storage.walk("run/").keys() == keys
    assert len(network.line.requests) == math.ceil(len(keys) / PAGE)
    listing = storage.list("run")
    assert listing.folders == {key.split("/")[1] for key in keys if key.count("/") == 2}
    assert listing.files.keys() == {key.split("/")[1] for key in keys if key.count("/") == 1}
    assert storage.list("run", "file14").files.keys() == {
        key.split("/")[1] for key in keys if key.startswith("run/file14")
    }


def test_real_client_pools_enough_connections():
    options = S3Options(key="k", secret="s", endpoint_url="http://localhost:1")
    client = connect(options, {}, options.keys(), "us-east-1")
    assert client.api.meta.config.max_pool_connections >= CONNECTIONS >= worker.THREADS
