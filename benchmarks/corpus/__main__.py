"""Trains jobs of the corpus, kills and resumes them, and counts: ``python -m benchmarks.corpus --sample 60 --jobs 2``.

For each truth and class of state: how many resumes are exact without a line of the user's, named (they differ, and a
warning names state), refused, silent (they differ, and none does), needless (exact, and a name all the same), broken.
Exits with 1 if a job is broken.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import random
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.corpus.job import CLASSES, TRUTHS, Job, all_jobs
from benchmarks.corpus.lives import Lives, Result

HERE = Path(__file__).parents[2]
SYSTEMS = ("ckptkit", "ms-checkpoint")
COLUMNS = ("exact", "named", "refused", "silent", "needless", "broken")


def results_of(
    jobs: Sequence[Job],
    at_once: int = 1,
    package: Path = HERE,
    is_killed: bool = False,
    system: str = "ckptkit",
) -> Iterator[Result]:
    """Yield what becomes of each job, in their order."""
    free: queue.SimpleQueue[Lives] = queue.SimpleQueue()

    def result_of(job: Job) -> Result:
        lives = free.get()
        try:
            return lives.result_of(job)
        finally:
            free.put(lives)

    with contextlib.ExitStack() as opened:
        for _ in range(at_once):
            free.put(opened.enter_context(contextlib.closing(Lives(package, is_killed, system))))
        yield from opened.enter_context(ThreadPoolExecutor(at_once)).map(result_of, jobs)


def sample(jobs: Sequence[Job], count: int, seed: int) -> list[Job]:
    """Return ``count`` of the jobs, by their names."""
    return sorted(random.Random(seed).sample(jobs, min(count, len(jobs))), key=lambda job: job.name)


def table(results: Sequence[Result]) -> str:
    """Return a line for each truth and class, then one for each job to look at."""
    rows = [("truth", "class", "jobs", *COLUMNS)]
    for truth in (*TRUTHS, "all"):
        for place in (*CLASSES, "all") if truth != "all" else ("all",):
            of_both = [r.category for r in results if truth in ("all", r.job.truth) and place in ("all", r.job.place)]
            if of_both:
                rows.append((truth, place, len(of_both), *(of_both.count(column) or "-" for column in COLUMNS)))
    lines = [f"{row[0]:<20} {row[1]:<10}" + "".join(f"{cell!s:>9}" for cell in row[2:]) for row in rows]
    for result in results:
        is_worse = result.outcome == "differs" and result.job.truth.startswith("exact")
        if is_worse or result.category in ("silent", "broken"):
            lines.append(f"{result.job.name}: {result.category}, truth: {result.job.truth}; {result.about}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the jobs, print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--system", choices=SYSTEMS, default=SYSTEMS[0], help="what saves and resumes: ms_checkpoint.py"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="so many, drawn by --seed; all otherwise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--class", dest="places", nargs="+", choices=CLASSES, default=CLASSES, help="where state lives")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=(), help="only these jobs")
    parser.add_argument("--jobs", type=int, default=1, help="how many at once")
    parser.add_argument("--kill", action="store_true", help="a third life for each, killed by SIGKILL")
    parser.add_argument("--package", type=Path, default=HERE, help="the folder in which the ckptkit to run lies")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results there, with all that was logged")
    given = parser.parse_args(arguments)
    jobs = [job for job in all_jobs() if job.place in given.places and (not given.only or job.name in given.only)]
    if missing := {*given.only} - {job.name for job in jobs}:
        parser.error(f"no such jobs: {', '.join(sorted(missing))}")
    if given.sample is not None:
        jobs = sample(jobs, given.sample, given.seed)
    began, results = time.monotonic(), []
    for result in results_of(jobs, given.jobs, given.package.resolve(), given.kill, given.system):
        results.append(result)
        print(f"{result.job.name} [{result.job.truth}]: {result.category}", file=sys.stderr, flush=True)
    if given.json:
        lines = [json.dumps(result.as_json()) for result in results]
        given.json.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(table(results))
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU-seconds, {time.monotonic() - began:.0f} s")
    return int(any(result.outcome == "broken" for result in results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
