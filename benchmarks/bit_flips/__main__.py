"""Counts flipped bits that ``ckptkit replay`` finds, and clean stretches that it certifies.

``python -m benchmarks.bit_flips --flips 50 --clean 50``: half of them in jobs of one rank, half in jobs of two. A flip
that reaches no checkpoint, because rounding removed it, is counted apart, and another one takes its place. The exit
code is 1 if one verdict was wrong.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.bit_flips.trial import Found, Job, Stored, random_flip, trained, tried


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=50, help="trainings with a flipped bit, over all numbers of ranks")
    parser.add_argument("--clean", type=int, default=50, help="trainings without one")
    parser.add_argument("--job", choices=["numpy", "mindspore"], default="numpy")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    began = time.monotonic()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="bit-flips-") as folder:
        for at, ranks in enumerate(given.ranks):
            parts, both = len(given.ranks), (given.flips, given.clean)
            share = [count // parts + (at < count % parts) for count in both]
            wrong += tried_many(Job(given.job, ranks), Path(folder) / str(ranks), *share, seed=given.seed)
    print(f"{time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


def tried_many(job: Job, folder: Path, flips: int, cleans: int, *, seed: int) -> int:
    """Try ``job`` and print the counts; returns how many verdicts were wrong."""
    chance = random.Random(f"{seed} {job.kind} {job.ranks}")
    reference = trained(job, folder / "reference", None)
    found: list[Found] = []
    number = 0
    while sum(one.flip is not None and not one.has_vanished for one in found) < flips:
        found.append(_tried(job, folder / f"flip-{number}", reference, chance))
        number += 1
    found += [_tried(job, folder / f"clean-{number}", reference, None) for number in range(cleans)]
    seen = [one for one in found if one.flip is not None and not one.has_vanished]
    vanished, clean = [one for one in found if one.has_vanished], [one for one in found if one.flip is None]
    where = Counter(f"{one.flip.leaf} of rank {one.flip.rank}" for one in seen if one.flip is not None)
    print(f"{job.kind}, {job.ranks} rank(s):")
    print(f"  flips: {sum(one.is_right for one in seen)} of {len(seen)} with stretch and leaves named")
    held = sum(one.names_the_leaf for one in seen)
    print(f"  the leaf that flipped is among those: {held} of {len(seen)}; else, the checkpoint has only its effects")
    print(f"  where: {dict(sorted(where.items()))}")
    print(f"  flips that reached no checkpoint: {len(vanished)}, of them certified: {sum(_right(vanished))}")
    print(f"  clean stretches: {sum(one.is_right for one in clean)} of {len(clean)} certified", flush=True)
    return sum(not one.is_right for one in found)


def _right(found: list[Found]) -> list[bool]:
    return [one.is_right for one in found]


def _tried(job: Job, folder: Path, reference: Stored, chance: random.Random | None) -> Found:
    flip = None if chance is None else random_flip(job, chance)
    found = tried(job, folder, flip, reference)
    if not found.is_right:
        print(f"    {folder.name}: {found}", flush=True)
    shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    sys.exit(main())
