"""Measures from a SIGKILL to the next micro-step under ``ckptkit run``, by phase, beside the script without ckptkit.

    python -m benchmarks.restarts [--folder /disk/restarts] [--mib 256] [--times 5]

Both start in turn. A training under ``ckptkit run`` is killed once its checkpoint lies on the disk, whose files are
dropped from the page cache. The other column is the same script without ckptkit, from the start of its process. Prints
medians with the lowest and the highest value. Modules come from their compiled files, as after an installation.
`benchmarks.restarts.homes` compares where the state is read from.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.restarts.notes import JOB, drop_from_cache, lives, waits
from ckptkit.tools.supervisor.processes import descendants, send

PHASES = {
    "notice": "supervisor's notice",
    "interpreter": "interpreter",
    "mindspore": "imports of MindSpore",
    "ckptkit": "imports of ckptkit",
    "script": "network and data",
    "restore": "restore",
    "replay": "replay of 20 batches",
    "compilation": "compilation",
    "step": "micro-step",
}
LIMIT_SECONDS = 120.0
Seconds = Mapping[str, float]  # by phase


def wait_for(condition: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{process.args!r} did not get there; exit code {process.poll()}")
        time.sleep(0.02)


@contextlib.contextmanager
def started(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, and kill it and the processes below it in the end."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            below = descendants(process.pid)
            process.kill()
            send(below, signal.SIGKILL)


def plain_start(folder: Path, width: int) -> Seconds:
    """Return the seconds of one start without ckptkit."""
    notes = folder / "plain"
    born = time.time()
    with started(sys.executable, JOB, json.dumps([None, None, str(notes), width])) as process:
        wait_for(lambda: waits(notes, 0), process)
    times = lives(notes)[0]
    began, stepped, stepped_again = times["built"][0], *times["stepped"]
    step = stepped_again - stepped
    return {
        "interpreter": times["started"][0] - born,
        "mindspore": times["mindspore"][0] - times["started"][0],
        "script": times["built"][0] - times["mindspore"][0],
        "compilation": stepped - began - step,
        "step": step,
    }


def restart(folder: Path, width: int) -> Seconds:
    """Return the seconds of one restart under ``ckptkit run``."""
    root, notes = folder / "run", folder / "resumed"
    argument = json.dumps([str(root), None, str(notes), width])
    with started(sys.executable, "-m", "ckptkit", "run", "--", sys.executable, JOB, argument) as process:
        wait_for(lambda: waits(notes, 0) and any(root.glob("checkpoints/*/COMMIT")), process)
        drop_from_cache(root)
        (job,) = descendants(process.pid)
        killed, uptime = time.time(), time.clock_gettime(time.CLOCK_BOOTTIME)
        os.kill(job, signal.SIGKILL)
        wait_for(lambda: len(lives(notes)) > 1, process)
        (job,) = descendants(process.pid)
        born = killed + birth(job) - uptime
        wait_for(lambda: waits(notes, 1), process)
    times = lives(notes)[1]
    began, stepped, stepped_again = times["ckptkit"][0], *times["stepped"]
    step, restore, replay = stepped_again - stepped, times["in-restoring"][0], times["in-replaying"][0]
    return {
        "notice": born - killed,
        "interpreter": times["started"][0] - born,
        "mindspore": times["mindspore"][0] - times["started"][0],
        "ckptkit": times["ckptkit"][0] - times["built"][0],
        "script": times["built"][0] - times["mindspore"][0],
        "restore": restore,
        "replay": replay,
        "compilation": stepped - began - restore - replay - step,
        "step": step,
    }


def birth(pid: int) -> float:
    """Return when a process was born, in seconds since the machine was started."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")


def rows(plain: Sequence[Seconds], resumed: Sequence[Seconds]) -> Iterator[str]:
    """Return the table: medians, and the lowest and the highest value."""
    yield f"{'seconds':<24} | {'without ckptkit':>20} | {'after a SIGKILL':>20}"
    for phase, name in PHASES.items():
        cells = [spread([seconds[phase] for seconds in column if phase in seconds]) for column in (plain, resumed)]
        yield " | ".join([f"{name:<24}", *cells])
    sums = [[sum(seconds.values()) for seconds in column] for column in (plain, resumed)]
    yield " | ".join([f"{'in all':<24}", *map(spread, sums)])
    ratios = [after / before for before, after in zip(*sums, strict=True)]
    yield f"{'times the other':<24} | {'':>20} | {spread(ratios)}"


def spread(values: Sequence[float]) -> str:
    if not values:
        return f"{'':>20}"
    return f"{statistics.median(values):5.2f} ({min(values):.2f} to {max(values):.2f})".rjust(20)


def measure(folder: Path, *, mib: int, times: int) -> tuple[list[Seconds], list[Seconds]]:
    """Return the seconds of starts without ckptkit and of restarts, in turn; the first of both is not counted."""
    width = int((mib * (1 << 20) / 12) ** 0.5)  # a weight and two moments, of 4 bytes each
    plain, resumed = [], []
    for number in range(times + 1):
        place = folder / str(number)
        place.mkdir(parents=True)
        plain.append(plain_start(place, width))
        resumed.append(restart(place, width))
        print(f"{sum(plain[-1].values()):.2f} s, {sum(resumed[-1].values()):.2f} s", file=sys.stderr, flush=True)
        shutil.rmtree(place)
    return plain[1:], resumed[1:]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restarts", description=__doc__)
    parser.add_argument("--folder", type=Path, help="on a disk; default a temporary folder")
    parser.add_argument("--mib", type=int, default=256, help="size of the state")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        print(*rows(*measure(Path(folder), mib=options.mib, times=options.times)), sep="\n")


if __name__ == "__main__":
    main()
