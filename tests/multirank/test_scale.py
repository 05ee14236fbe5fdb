"""What a save, a start and a removal ask of an object store in jobs of up to 4,096 ranks: counted, not estimated.

The code is the product's, down to the calls of botocore's client; the store and the clock are simulated.
"""

import functools
import math
from pathlib import Path

import pytest

from benchmarks.scale.costs import SIZES, Row, commits, median, rows
from benchmarks.scale.job import Commit, Job
from benchmarks.scale.network import Line, Network
from benchmarks.scale.storage import PAGE
from ckptkit.core import worker
from ckptkit.run.catalog import latest_checkpoint

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


@pytest.mark.parametrize(("ranks", "column"), [(8, 1), pytest.param(512, 2, marks=pytest.mark.extended)])
def test_page_states_these_request_counts(ranks, column):
    """And small files are read beside each other."""
    page = (Path(__file__).parents[2] / "docs/scale.md").read_text(encoding="utf-8")
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line[:2] == "| "]
    stated = {cells[0]: cells[column] for cells in table if len(cells) == 5}
    measured = [row for row in rows(ranks, 20) if isinstance(row, Row) and "the same" not in row.what]
    assert len(measured) == 8
    for row in measured:
        assert stated[row.what] == f"{row.get + row.put + row.listed + row.delete:,}", row
        assert row.delete or row.seconds < 10.0, row


def test_pool_requests_take_time_concurrently():
    network = Network(1)
    worker.each_of(range(640), lambda number: network.send("get", str(number)))
    beside = network.now()
    assert len(network.line.requests) == 640
    network.become(Line())
    for number in range(640):
        network.send("get", str(number))
    assert beside < network.now() / 20
