"""Prints how the intervals of ``SaveEvery.auto`` fare against the best fixed one (``docs/goodput.md``).

python -m benchmarks.intervals
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from .simulation import Job, auto, best_fixed
from .traces import Trace, lanl, llama3

OVERHEAD = 0.01
JOBS = (Job(0.05, 2, 60), Job(1, 10, 60), Job(20, 60, 60))
HEADER = """| failures | mean between them | a save: stall, took | best fixed | counts | with auto | of the best |
|---|---:|---|---:|---:|---:|---:|"""


def traces() -> list[Trace]:
    return [*lanl(), llama3(), *(one.at_mean(600) for one in lanl())]


def rows() -> Iterator[str]:
    for trace in traces():
        for job in JOBS:
            interval, best = best_fixed(trace, job)
            found = auto(trace, job, OVERHEAD)
            mean = f"{trace.mean / 3600:.1f} h" if trace.mean > 3600 else f"{trace.mean / 60:.0f} min"
            yield (
                f"| {trace.name} | {mean} | {job.stall:g} s, {job.took:g} s | {interval:.0f} s | {best:.2%} "
                f"| {found:.2%} | {found / best:.3f} |"
            )


def main() -> None:
    sys.stdout.write(f"{HEADER}\n")
    for row in rows():
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
