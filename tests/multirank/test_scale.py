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
from benchmarks.scale.network import FAILING, Line, Network
from benchmarks.scale.storage import PAGE, Objects, storage_over
from ckptkit.core import worker
from ckptkit.run.catalog import latest_checkpoint, list_rows
from ckptkit.storage.s3.options import CONNECTIONS, S3Options, connect

FILES = 5  # of a rank: three shards, its document, its receipt
LARGEST = SIZES[-1]


def sized(*sizes: int) -> list[object]:
    """The default suite runs up to 64 ranks."""
    return [pytest.param(size, marks=[pytest.mark.extended] if size > 64 else []) for size in sizes]


MANY = sized(*(size for size in SIZES if size > 1))


@functools.cache
def saved(ranks: int) -> tuple[Job, list[Commit]]:
    job = Job(ranks)
    return job, commits(job, 5 if ranks == LARGEST else 20)


@pytest.mark.parametrize("ranks", sized(*SIZES))
def test_commit_follows_last_part_and_is_found(ranks):
    job, saves = saved(ranks)
    newest = latest_checkpoint(job.storage)
    assert newest is not None
    assert newest.name == str(saves[0].name)
    for save in saves:
        assert save.leader.seconds > max((part.seconds for part in save.others), default=0.0)


@pytest.mark.parametrize("ranks", MANY)
def test_requests_of_other_ranks_ignore_world_size(ranks):
    _, saves = saved(ranks)
    asked = {tuple(sorted(part.kinds.items())) for save in saves for part in save.others}
    # A look at the attempts and at its own document; of each file whether it is there, and the file.
    assert asked == {(("get", FILES + 1), ("list", 1), ("put", FILES))}


@pytest.mark.parametrize("ranks", MANY)
def test_rank_0_commits_without_request_per_rank(ranks):
    _, saves = saved(ranks)
    for save in saves:
        kinds = save.leader.kinds
        # Its own four files, the manifest and COMMIT, its attempt twice, and not one file of another rank.
        assert (kinds["get"], kinds["put"], kinds["delete"]) == (7, 6, 0)
        assert not [one for one in save.leader.requests if "/rank-" in one.key and "/rank-00000" not in one.key]
        walked = [one for one in save.leader.requests if one.key == f"{save.name.folder}/"]
        # Rank 0 has no receipt; the manifest is not there yet.
        assert len(walked) == math.ceil((FILES * ranks - 1) / PAGE)


@pytest.mark.extended
def test_rank_0_requests_grow_little_with_ranks():
    asked = {ranks: statistics.median(len(one.leader.requests) for one in saved(ranks)[1]) for ranks in (8, LARGEST)}
    assert asked[LARGEST] < 6 * asked[8], asked
    assert asked[LARGEST] < LARGEST / 32, asked


@pytest.mark.parametrize("ranks", sized(*SIZES))
def test_a_save_is_committed_within_ten_seconds(ranks):
    assert median(saved(ranks)[1]) <= 10.0


@pytest.mark.parametrize("ranks", sized(8, 512))
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
    told = [row for ranks in (1, 8) for row in rows(ranks, 20) if isinstance(row, Row)]
    counts = {str(row).rpartition("|")[0].rpartition("|")[0] for row in told if "the same" not in row.what}
    stated = {
        one.rpartition("|")[0].rpartition("|")[0] for one in page.splitlines() if one.startswith(("| 1 |", "| 8 |"))
    }
    assert stated - counts == {"| 8 | 138 ", "| 8 "}  # tables without a row of costs.rows
    assert len(stated & counts) == 9


def test_the_network_is_as_slow_as_it_says():
    network = Network(7)
    for _ in range(20_000):
        network.send("get", "key")
    requests = network.line.requests
    again = sum(one.tries - 1 for one in requests) / len(requests)
    assert again == pytest.approx(FAILING, rel=0.2)
    drawn = statistics.quantiles((network.draw() for _ in range(20_000)), n=100)
    assert drawn[49] == pytest.approx(0.030, rel=0.1)
    assert drawn[98] == pytest.approx(0.300, rel=0.3)  # with what repetitions add


def test_pool_requests_take_time_concurrently():
    network = Network(1)
    worker.each_of(range(640), lambda number: network.send("get", str(number)))
    beside = network.now()
    assert len(network.line.requests) == 640
    network.become(Line())
    for number in range(640):
        network.send("get", str(number))
    assert beside < network.now() / 20


def test_object_is_invisible_before_its_write():
    network = Network(3)
    storage = storage_over(Objects(network))
    network.wait(60.0)
    storage.create("folder/late", b"x")
    network.become(Line())
    assert storage.list("folder").files == {}
    network.wait(120.0)
    assert storage.list("folder").files == {"late": 1}


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
