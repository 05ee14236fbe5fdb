"""Measures ckptkit beside other ways to save, and prints one table each with what it ran on.

    python -m benchmarks.bench --quick                    a first look
    python -m benchmarks.bench                            stall, training, growth
    python -m benchmarks.bench --only stall,positioning   some of them
    python -m benchmarks.bench --only transfer            an object store
    python -m benchmarks.bench --only peers               ckptkit beside libraries of PyTorch and JAX; 15 minutes
    python -m benchmarks.bench --table                    print the last results again
    python -m benchmarks.bench --only stall --cycles 1 --layouts boundary --workdir /dev/shm/bench
                                                          a save after every update, into memory

PyTorch and JAX are measured in environments of their own, which `benchmarks.environments` makes for ``peers``. Others
are given with ``--env``; they need xxhash, and not ckptkit:

    python -m benchmarks.bench --only stall --systems none,ckptkit,dcp --env torch=torch/bin/python

It needs what the tests need. Nothing else heavy may run: there are few cores, and memory is shared. Raw numbers are
below WORKDIR/results, one JSON file per benchmark.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from benchmarks.environments import python_of

from . import growth, machine, micro_step, own_callback, stall, training, transfer
from .measurement import CHECKOUT
from .options import Options
from .systems import MODULES


def run_positioning(options: Options) -> Iterator[dict[str, Any]]:
    """In its own process, as it always was."""
    command = [sys.executable, "-m", "benchmarks.bench.positioning", "1" if options.quick else "3"]
    done = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True)
    yield {"table": done.stdout}


def run_peers(options: Options) -> Iterator[dict[str, Any]]:
    """The stall benchmark of all peers, where it saves at boundaries."""
    pythons = {name: python_of(name) for name in ("torch", "jax")}
    return stall.run(replace(options, systems=stall.PEERS, layouts=("boundary",), pairs=1, pythons=pythons))


BENCHMARKS: dict[str, ModuleType | SimpleNamespace] = {
    "stall": stall,
    "peers": SimpleNamespace(run=run_peers, tables=stall.table_of_peers, __doc__="Peers."),
    "training": training,
    "growth": growth,
    "micro_step": micro_step,
    "own_callback": own_callback,
    "transfer": transfer,
    "positioning": SimpleNamespace(run=run_positioning, tables=lambda found: found["table"], __doc__="Positioning."),
}
BY_DEFAULT = "stall,training,growth"


def parsed(arguments: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="48 MiB of weights, one pair of loops, fewer points")
    parser.add_argument("--only", default=BY_DEFAULT, help=f"some of {','.join(BENCHMARKS)}")
    parser.add_argument("--workdir", type=Path, default=Path("build/bench"), help="on the disk to measure")
    parser.add_argument("--table", action="store_true", help="measure nothing, print the last results")
    parser.add_argument("--mib", type=int, help="weights; the state is four times that")
    parser.add_argument("--micro-ms", type=float, help="length of a synthetic micro-step")
    parser.add_argument("--saves", type=int, help="per loop")
    parser.add_argument("--cycles", type=int, help="between two saves of the synthetic training")
    parser.add_argument("--pairs", type=int, help="loops with saves, each beside one without")
    parser.add_argument("--rounds", type=int, help="processes per system, every second time backwards")
    parser.add_argument("--systems", type=lambda text: tuple(text.split(",")), help=f"some of {','.join(MODULES)}")
    parser.add_argument(
        "--layouts", type=lambda text: tuple(text.split(",")), help=f"some of {','.join(stall.LAYOUTS)}"
    )
    parser.add_argument(
        "--env", dest="pythons", action="append", type=lambda text: text.split("=", 1), help="NAME=PYTHON"
    )
    parser.add_argument("--modes", type=lambda text: tuple(text.split(",")), help="graph,pynative")
    found = parser.parse_args(arguments)
    unknown = sorted(set(found.only.split(",")) - BENCHMARKS.keys())
    if unknown:
        parser.error(f"--only: there is no {', '.join(unknown)}")
    return found


def options_of(given: argparse.Namespace) -> Options:
    """What was given, over the defaults."""
    options = Options(given.workdir.absolute())
    if given.quick:
        options = replace(options, mib=48, pairs=1, restores=1, quick=True)
    if given.pythons:
        options = replace(options, pythons=dict(given.pythons))
    named = ("mib", "micro_ms", "saves", "cycles", "pairs", "rounds", "systems", "layouts", "modes")
    return replace(options, **{name: getattr(given, name) for name in named if getattr(given, name) is not None})


def main(arguments: list[str]) -> None:
    """Measure, keep and print."""
    given = parsed(arguments)
    options = options_of(given)
    results = options.workdir / "results"
    results.mkdir(parents=True, exist_ok=True)
    for name in given.only.split(","):
        path = results / f"{name}.json"
        if not given.table:
            ran_on = machine.describe(options.workdir, arguments)
            for found in BENCHMARKS[name].run(options):  # kept as they come: a long run may be interrupted
                path.write_text(json.dumps({"machine": ran_on, "found": found}, indent=1))
        if path.exists():
            print(text_of(name, json.loads(path.read_text())), flush=True)
    shutil.rmtree(options.scratch, ignore_errors=True)


def text_of(name: str, result: dict[str, Any]) -> str:
    """One benchmark's results, for people."""
    header = "\n".join(f"- {key}: {value}" for key, value in result["machine"].items())
    return f"\n## {name}\n\n{header}\n\n{BENCHMARKS[name].tables(result['found'])}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
