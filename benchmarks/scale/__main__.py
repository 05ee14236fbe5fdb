"""Prints what jobs of 1 to 4,096 ranks ask of an object store, from a simulation (``docs/scale.md``).

python -m benchmarks.scale [--seeds 20] [--ranks 8,4096]
"""

from __future__ import annotations

import argparse
import sys

from .costs import HEADER, SIZES, TOLD_HEADER, Told, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="how many times the latencies of a save are drawn")
    parser.add_argument("--ranks", default=",".join(map(str, SIZES)), help="sizes of jobs")
    options = parser.parse_args()
    sys.stdout.write(f"{HEADER}\n")
    told: list[Told] = []
    for ranks in map(int, options.ranks.split(",")):
        for row in rows(ranks, options.seeds):
            if isinstance(row, Told):
                told.append(row)
                continue
            sys.stdout.write(f"{row}\n")
            sys.stdout.flush()
    sys.stdout.write("\n".join(["\nTold by rank 0 at a start:\n", TOLD_HEADER, *map(str, told), ""]))


if __name__ == "__main__":
    main()
