"""Lets ckpt-chaos kill saves of ckptkit and of peers, and prints its table: ``python -m benchmarks.chaos``.

ckpt-chaos kills a training at events of its files, cuts what is being written in half, takes back what had no fsync, or
sends SIGTERM; then it resumes the training and compares the last weights. Each job saves four times. It makes the
environments of the peers first (`benchmarks.environments`).

It sees less than the crash tests of ckptkit, which kill at each call: it does not see `os.link`, which creates its
commits, nor writes and fsyncs; what `os.open` has opened is neither cut nor taken back. There is no row for Orbax,
because ckpt-chaos 0.1.8 replaces `tensorstore.open` by something that Orbax cannot await.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.environments import python_of

JOBS = {  # by row: the environment, None for this one, and the script that knows this name
    "ckptkit": (None, "mindspore_job.py"),
    "ModelCheckpoint": (None, "mindspore_job.py"),
    "torch.save": ("torch", "torch_job.py"),
    "dcp": ("torch", "torch_job.py"),
}
HERE = Path(__file__).parent


def chaos(*arguments: str) -> None:
    subprocess.run([python_of("chaos"), "-m", "ckpt_chaos", *arguments], cwd=HERE.parents[1], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--systems", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--points", default="40", help="kills of each system, a quarter of each kind")
    parser.add_argument("--jobs", default="2", help="how many at once")
    parser.add_argument("--workdir", type=Path, default=Path("build/chaos"))
    given = parser.parse_args()
    shutil.rmtree(given.workdir, ignore_errors=True)
    options = ["--modes", "before,torn,unsynced,term", "--max-points", given.points, "--jobs", given.jobs]
    judged = ["--result-file", "{out}/final.bin", "--step-regex", r"resumed from step (\d+)", "--fail-on", ""]
    for name in given.systems:
        environment, script = JOBS[name]
        python = python_of(environment) if environment else sys.executable
        job = [python, str(HERE / script), name, "{out}"]
        print(f"\n{name}", flush=True)
        chaos("run", *options, *judged, "--work", str(given.workdir.absolute() / name), "--", *job)
    chaos("scoreboard", *(str(given.workdir.absolute() / name) for name in given.systems))


if __name__ == "__main__":
    main()
