"""Goes the way of a newcomer and times it: README's first screen, then an exact resume of one's own training script.

::

    python tests/docs/newcomer/try_it.py --wheel W.whl   # in an empty environment, without the repository

It exits with 1 if a step fails, if the resumed training is not the uninterrupted one to the last bit, if ten lines of
the script or more had to be changed, or if it took longer than ``--within`` seconds. What `pip` takes to download and
install MindSpore depends on the network and the disk; it is printed and not counted. Standard library only, because it
is what creates the environment. Linux only; run as a program.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from changed_lines import SCRIPTS, changed_lines

REPOSITORY = SCRIPTS.parents[2]
MOST_CHANGED_LINES = 9

DIGITS = """
import numpy as np
from ckptkit.mindspore.digits import load_digits

digits = load_digits()
np.savez("digits.npz", images=digits.train_images, labels=digits.train_labels)
"""

# Everything that the newest checkpoint of a root holds, as one digest.
DIGEST = """
import sys
import xxhash
from ckptkit.run.index import Index
from ckptkit.checkpoint.open import open_checkpoint
from ckptkit.checkpoint.read import load
from ckptkit.storage import LocalStorage

storage = LocalStorage(sys.argv[1])
index = Index(storage)
name = [one for one in index.names if index.is_committed(one)][-1]
loaded = load(storage, open_checkpoint(storage, name, index.document(name.attempt)))
digest = xxhash.xxh3_128()
for key, array in sorted(loaded.tensors.items()):
    digest.update(key.encode() + array.tobytes())
digest.update(repr((loaded.progress, loaded.state)).encode())
print(len(loaded.tensors), digest.hexdigest())
"""


class StepError(Exception):
    """A step did not do what README says."""


@dataclass
class Newcomer:
    bin: Path
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - begun
        print(f"{self.seconds[step]:7.1f} s  {step}", flush=True)

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "GLOG_v": "3"}

    def run(self, command: list[str], folder: Path) -> str:
        """Run a command and return what it wrote, both streams together."""
        done = subprocess.run(
            command,
            cwd=folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise StepError(f"{' '.join(command)} exits with {done.returncode}:\n{done.stdout[-3000:]}")
        return done.stdout

    def python(self, *arguments: str, folder: Path) -> str:
        return self.run([str(self.bin / "python"), *arguments], folder)

    def commits(self, folder: Path) -> list[dict[str, Any]]:
        """What `ckptkit ls` lists, oldest first."""
        listed = json.loads(self.run([str(self.bin / "ckptkit"), "ls", "--json", "runs/digits"], folder))
        return list(listed["checkpoints"])


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
        shutil.copy(work / "digits.npz", folder)
        shutil.copy(SCRIPTS / script, folder / "train.py")
    with newcomer.timed(f"{script}: trained"):
        newcomer.python("train.py", folder=alone)
    with newcomer.timed(f"{script}: started once more and killed in mid-epoch"):
        kill_after_commits(newcomer, killed, commits)
    newest = newcomer.commits(killed)[-1]
    name, at = newest["name"], newest["progress"]
    if at["batch"] == 0:
        raise StepError(f"it was to be killed in mid-epoch, and its newest checkpoint is {newest}")
    with newcomer.timed(f"{script}: started again"):
        said = newcomer.python("train.py", folder=killed)
    if f"resuming from {name}: epoch {at['epoch']}, batch {at['batch']}," not in said:
        raise StepError(f"it was not resumed from {newest}:\n{said}")
    ends = [newcomer.python("-c", DIGEST, "runs/digits", folder=one) for one in (alone, killed)]
    if ends[0] != ends[1]:
        raise StepError(f"{script}: the resumed training ended in another state: {ends}")
    if (alone / "digits.ckpt").read_bytes() != (killed / "digits.ckpt").read_bytes():
        raise StepError(f"{script}: the resumed training has exported other weights")
    print(f"           resumed from {name}; everything in the last checkpoint is equal: {ends[0].strip()}")


def kill_after_commits(newcomer: Newcomer, folder: Path, commits: int) -> None:
    """Start ``train.py`` and SIGKILL it when so many checkpoints have been committed."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(newcomer.bin / "python"), "train.py"],
            cwd=folder,
            env=newcomer.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        seen: set[str] = set()
        while len(seen) < commits:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.01)
            seen |= {path.parent.name for path in folder.glob("runs/digits/checkpoints/*/COMMIT")}
            if process.poll() is not None:
                raise StepError(f"it ended with {process.returncode}:\n{(folder / 'log').read_text()[-3000:]}")
    finally:
        process.kill()
        process.wait()
    if process.returncode != -signal.SIGKILL:
        raise StepError("it ended before it was killed")


def prepare(newcomer: Newcomer, work: Path) -> None:
    newcomer.python("-c", DIGITS, folder=work)


def go(wheel: Path, work: Path) -> float:
    """The whole way; returns the seconds that count."""
    newcomer = Newcomer(work / "venv/bin")
    *_, demo = first_screen(REPOSITORY / "README.md")
    with newcomer.timed("not counted: a virtual environment, and pip install"):
        subprocess.run([sys.executable, "-m", "venv", str(work / "venv")], check=True)
        newcomer.python("-m", "pip", "install", str(wheel.resolve()), folder=work)
    with newcomer.timed(demo):
        said = newcomer.run(["sh", "-c", demo], work)
    if "not one bit differs" not in said:
        raise StepError(f"{demo} says:\n{said}")
    changed = changed_lines(SCRIPTS / "before.py", SCRIPTS / "after.py")
    print(f"{len(changed)} lines of the script are changed:", *changed, sep="\n  ")
    if len(changed) > MOST_CHANGED_LINES:
        raise StepError(f"at most {MOST_CHANGED_LINES} may be")
    prepare(newcomer, work)
    resume_exactly(newcomer, "after.py", work)
    return sum(seconds for step, seconds in newcomer.seconds.items() if not step.startswith("not counted"))


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
