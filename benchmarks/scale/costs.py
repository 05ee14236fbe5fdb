"""What a job of so many ranks asks of an object store: measured in the simulation, as rows of a table."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from ckptkit.run.catalog import latest_checkpoint, list_rows

from .job import Commit, Job, Measured

SIZES = (1, 2, 8, 64, 512, 4096)


class Told(NamedTuple):
    """What rank 0 tells the others at a start, in bytes; of tiny leaves, four in all."""

    ranks: int
    size_bytes: int

    def __str__(self) -> str:
        """A row of a table in Markdown."""
        return f"| {self.ranks:,} | {self.size_bytes:,} |"


class Row(NamedTuple):
    """What one thing costs one rank.

    Attributes:
        ranks: Of the job.
        what: Is done.
        get: Requests of a kind, each counted once however often it was sent, as those after it.
        put: As ``get``.
        listed: Pages.
        delete: As ``get``.
        seconds: On the virtual clock, requests alone.
    """

    ranks: int
    what: str
    get: int
    put: int
    listed: int
    delete: int
    seconds: float

    @classmethod
    def of(cls, ranks: int, what: str, measured: Measured, seconds: float | None = None) -> Row:
        kinds = measured.kinds
        counts = (kinds[kind] for kind in ("get", "put", "list", "delete"))
        return cls(ranks, what, *counts, measured.seconds if seconds is None else seconds)

    def __str__(self) -> str:
        """A row of a table in Markdown."""
        counts = " | ".join(f"{count:,}" for count in (self.get, self.put, self.listed, self.delete))
        return f"| {self.ranks:,} | {self.what} | {counts} | {self.seconds:.1f} |"


HEADER = "| ranks | what | GET | PUT | pages of listings | DELETE | seconds |\n|---:|---|---:|---:|---:|---:|---:|"


TOLD_HEADER = "| ranks | bytes |\n|---:|---:|"


def commits(job: Job, seeds: int) -> list[Commit]:
    """One save with the latencies of each of ``seeds``."""
    first = job.save()
    return [first, *(job.again(first, seed) for seed in range(1, seeds))]


def median(saves: list[Commit]) -> float:
    """Of the seconds until rank 0 has committed."""
    return statistics.median(one.leader.seconds for one in saves)


def rows(ranks: int, seeds: int) -> Iterator[Row | Told]:
    """Of a job of ``ranks``; the commit and the parts with the median over ``seeds``, all else with one."""
    job = Job(ranks)
    saves = commits(job, seeds)
    typical = sorted(saves, key=lambda one: one.leader.seconds)[len(saves) // 2]
    yield Row.of(ranks, "a save, rank 0", typical.leader, median(saves))
    parts = [part for save in saves for part in save.others]
    if parts:
        yield Row.of(ranks, "a save, any other rank", parts[0], statistics.median(part.seconds for part in parts))
        slow = job.save(lambda rank: 30.0 + 30.0 * (rank * 7919 % ranks) / ranks)
        yield Row.of(ranks, "the same, rank 0, parts of 30 to 60 s", slow.leader)
    else:
        job.save()
    yield Row.of(ranks, "removing one checkpoint", job.save().after)
    yield Row.of(ranks, "`latest_checkpoint`", job.measure(lambda: latest_checkpoint(job.storage)))
    yield Row.of(ranks, "`ckptkit ls`", job.measure(lambda: list_rows(job.storage, 20)))
    said: list[str] = []
    yield Row.of(ranks, "a restore, rank 0", job.measure(lambda: job.restart(said)))
    if ranks > 1:
        yield Row.of(ranks, "a restore, any other rank", job.measure(lambda: job.follow(ranks - 1, said)))
        job.leave_a_part()
        job.restart()
        yield Row.of(ranks, "sweeping one dead save", job.measure(job.sweep))
        yield Told(ranks, sum(map(len, said)))
