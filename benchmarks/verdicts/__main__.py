"""Runs the doctor over scripts whose truth is known: ``python -m benchmarks.verdicts --count 100 --jobs 2``.

Exits with 1 if a sound job is called inexact. Each examination trains in an empty folder of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.verdicts.scripts import Script, chosen, known_scripts
from benchmarks.verdicts.table import Verdict, line_of, totals

LIMIT = 900  # seconds for an examination


def verdict_of(script: Script, options: Sequence[str] = ("--steps", "24", "--kills", "2")) -> Verdict:
    """Examine one script in a temporary folder."""
    began = time.monotonic()
    # Directly below TMPDIR: sockets of MindSpore's worker processes lie deeper, and a longer path than 107 bytes ends
    # the workers. From the environment: ``tempfile`` keeps the first answer, which may be a folder that is gone.
    with tempfile.TemporaryDirectory(prefix="verdict-", dir=os.environ.get("TMPDIR")) as folder:
        command = [sys.executable, "-m", "ckptkit", "doctor", "--json", *options, "--", sys.executable, script.path]
        environment = {"GLOG_v": "3", **os.environ, "ROOT": str(Path(folder) / "run"), "TMPDIR": folder}
        work = Path(folder) / "work"
        work.mkdir()
        done = subprocess.run(
            command, cwd=work, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    report = json.loads(done.stdout) if done.stdout.strip() else {}
    said = "" if report else done.stderr.strip()
    return Verdict(script, report.get("exact"), report.get("diagnosis"), said, time.monotonic() - began)


def main(arguments: Sequence[str]) -> int:
    """Run the examinations, print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many scripts, half of them defective")
    parser.add_argument("--part", type=int, default=0, help="which choice of that size")
    parser.add_argument("--jobs", type=int, default=1, help="examinations at once")
    parser.add_argument("--only", help="names of scripts, by commas, in place of --count")
    parser.add_argument("--options", default="--steps 24 --kills 2", help="options of the doctor")
    given = parser.parse_args(arguments)
    scripts = known_scripts()
    names = set((given.only or "").split(","))
    wanted = (
        [one for one in scripts if one.path.stem in names]
        if given.only
        else chosen(scripts, given.count, part=given.part)
    )
    verdicts = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for verdict in pool.map(lambda one: verdict_of(one, given.options.split()), wanted):
            verdicts.append(verdict)
            print(line_of(verdict), flush=True)
    print(totals(verdicts))
    return int(any(one.exact is False and not one.script.differs for one in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
