"""Goes the way of a newcomer and times it: README's first screen, then an exact resume of one's own training script.

::

    python tests/docs/newcomer/try_it.py --wheel W.whl   # in an empty environment, without the repository

It exits with 1 if a step fails, if the resumed training exports other weights than the uninterrupted one, or if it took
longer than ``--within`` seconds. What `pip` takes to download and install MindSpore depends on the network and the
disk; it is not counted. Standard library only, because it is what creates the environment. Linux only; run as a
program.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPTS = Path(__file__).parent
README = SCRIPTS.parents[2] / "README.md"

DIGITS = """
import numpy as np
from ckptkit.mindspore.digits import load_digits

digits = load_digits()
np.savez("digits.npz", images=digits.train_images, labels=digits.train_labels)
"""


class StepError(Exception):
    """A step did not do what README says."""


class Newcomer:
    """Runs programs of an environment, whose folder of programs is ``programs``."""

    def __init__(self, programs: Path) -> None:
        self.python = str(programs / "python")
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "GLOG_v": "3"}

    def run(self, *command: str, folder: Path) -> str:
        """Run a command and return what it wrote, both streams together."""
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, cwd=folder, env=self.environment, text=True, check=False, **streams)
        if done.returncode != 0:
            raise StepError(f"{' '.join(command)} exits with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout


def first_screen(readme: Path) -> list[str]:
    """The commands of the first shell block of README."""
    block = re.search(r"^```bash\n(.*?)^```", readme.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert block is not None
    return block[1].strip().split(" && ")


def resume_exactly(newcomer: Newcomer, script: str, work: Path, *, commits: int = 2) -> None:
    """Train ``script`` once alone and once killed after so many commits and started again, and compare."""
    alone, killed = work / f"{script}-alone", work / f"{script}-killed"
    for folder in (alone, killed):
        folder.mkdir()
        newcomer.run(newcomer.python, "-c", DIGITS, folder=folder)
        shutil.copy(SCRIPTS / script, folder / "train.py")
    newcomer.run(newcomer.python, "train.py", folder=alone)
    newest = kill_after_commits(newcomer, killed, commits)
    said = newcomer.run(newcomer.python, "train.py", folder=killed)
    if not re.search(rf"resuming from {newest}: epoch \d+, batch [1-9]", said):
        raise StepError(f"it was not resumed in mid-epoch from {newest}:\n{said}")
    if (alone / "digits.ckpt").read_bytes() != (killed / "digits.ckpt").read_bytes():
        raise StepError(f"{script}: the resumed training has exported other weights")
    print(f"{script}: killed, resumed from {newest}, and the weights are those of the uninterrupted training")


def kill_after_commits(newcomer: Newcomer, folder: Path, commits: int) -> str:
    """Start ``train.py``, SIGKILL it when so many checkpoints have been committed, and return the newest one's name."""
    names: set[str] = set()
    with (folder / "log").open("w") as log:
        streams = {"stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen([newcomer.python, "train.py"], cwd=folder, env=newcomer.environment, **streams)
    try:
        while len(names) < commits and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
            names |= {path.parent.name for path in folder.glob("runs/digits/checkpoints/*/COMMIT")}
    finally:
        process.kill()
        process.wait()
    if process.returncode != -signal.SIGKILL:
        raise StepError(f"it ended with {process.returncode}:\n{(folder / 'log').read_text()[-3000:]}")
    return max(path.parent.name for path in folder.glob("runs/digits/checkpoints/*/COMMIT"))


def go(wheel: Path, work: Path) -> float:
    """The whole way; returns the seconds that count."""
    newcomer = Newcomer(work / "venv/bin")
    *_, demo = first_screen(README)
    subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=True)
    newcomer.run(newcomer.python, "-m", "pip", "install", str(wheel.resolve()), folder=work)
    begun = time.monotonic()
    said = newcomer.run("sh", "-c", demo, folder=work)
    if "not one bit differs" not in said:
        raise StepError(f"{demo} says:\n{said}")
    resume_exactly(newcomer, "plain.py", work)
    return time.monotonic() - begun


def main() -> int:
    parser = argparse.ArgumentParser(description="README's first screen and an exact resume, timed.")
    parser.add_argument("--wheel", type=Path, required=True, help="what to install")
    parser.add_argument("--within", type=float, default=180, help="seconds that it may take beside installing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="newcomer-", ignore_cleanup_errors=True) as work:
        try:
            seconds = go(options.wheel, Path(work))
        except StepError as failure:
            print(failure, file=sys.stderr)
            return 1
    print(f"{seconds:7.1f} s  from README to an exact resume of one's own script, beside installing")
    return 0 if seconds <= options.within else 1


if __name__ == "__main__":
    sys.exit(main())
