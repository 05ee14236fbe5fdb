"""A MindSpore training under ``ckptkit run`` that dies again and again, and ends as an uninterrupted one.

``CKPTKIT_SOAK_MINUTES=30`` draws a death every 20 to 60 seconds for so long; otherwise each kind happens once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.supervised.soak_job import LEAST
from crash.supervised.supervised import Supervised, lives_of, python_path

JOB = Path(__file__).with_name("soak_job.py")
MINUTES = float(os.environ.get("CKPTKIT_SOAK_MINUTES", "0"))
KINDS = ["killed", "exception", "crash", "out-of-memory", "disk-full", "hang", "hang-of-a-worker"]
PAUSE = 0.1
STEPS_PER_EPOCH = 45


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 16 MiB, where this user may mount one; otherwise a folder."""
    folder.mkdir()
    mount = shutil.which("mount") or "/bin/mount"
    options = ["-t", "tmpfs", "-o", "size=16m", "none", str(folder)]
    mounted = subprocess.run([mount, *options], capture_output=True, check=False).returncode == 0
    try:
        yield folder
    finally:
        if mounted:
            subprocess.run([shutil.which("umount") or "/bin/umount", "--lazy", str(folder)], check=True)


def drawn(chance: random.Random) -> list[tuple[str, float]]:
    if not MINUTES:
        return [(kind, chance.uniform(1, 3)) for kind in KINDS]
    plan: list[tuple[str, float]] = []
    while sum(seconds for _, seconds in plan) < MINUTES * 60:
        kinds = chance.sample(KINDS, len(KINDS))  # each as often as the others
        plan += [(kind, chance.uniform(20, 60)) for kind in kinds]
    return plan


@pytest.mark.extended
@pytest.mark.timeout(int(MINUTES * 180) + 900)
def test_soak_names_each_death_and_differs_in_no_bit(tmp_path: Path) -> None:
    plan = drawn(random.Random(20))
    seconds = MINUTES * 60 if MINUTES else sum(after for _, after in plan)
    steps = seconds / PAUSE + LEAST * len(plan)
    epochs = int(steps / STEPS_PER_EPOCH) + 2
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with small_disk(tmp_path / "disk") as disk:
        command = [sys.executable, str(JOB), str(disk / "root"), "plan.json", str(epochs), str(PAUSE)]
        limits = ["--hang-after", "8s", "--grace", "8s", "--limit", "evaluating=60s"]
        job = Supervised(command, *limits, folder=tmp_path)
        code = job.end(seconds * 3 + 600)
        (tmp_path / "stderr.txt").write_text(job.stderr)
        assert code == 0, job.stderr[-4000:]
        done = (tmp_path / "plan.done").read_text().splitlines()
        lives = lives_of(disk / "root")
        print(table(done, [(one.cause, one.message, one.seconds) for one in lives]))
        planted = ["hang" if kind.startswith("hang") else kind for kind in done]
        assert [one.cause for one in lives] == [*planted, "finished"]
        assert all(sum(one.phases.values()) == pytest.approx(one.seconds, rel=0.01) for one in lives)
        assert job.left() == []
        plain = [sys.executable, str(JOB), str(tmp_path / "plain" / "root"), "no-plan.json", str(epochs), "0"]
        (tmp_path / "plain").mkdir()
        environment = {**os.environ, **python_path()}
        subprocess.run(plain, cwd=tmp_path, env=environment, check=True, timeout=seconds * 3 + 600)
        same = [sys.executable, "-m", "ckptkit", "diff", str(disk / "root"), str(tmp_path / "plain" / "root")]
        compared = subprocess.run(
            [*same, "--exit-code"], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert compared.returncode == 0, compared.stdout


def table(planted: list[str], reported: list[tuple[str, str, float]]) -> str:
    rows = zip([*planted, "-"], reported, strict=False)
    lines = [f"{kind:18} {cause:14} {seconds:7.1f} s  {message[:100]}" for kind, (cause, message, seconds) in rows]
    count = Counter(zip(planted, [cause for cause, _, _ in reported], strict=False))
    return "\n".join([*lines, *(f"{a} reported as {b}: {n}" for (a, b), n in sorted(count.items()))])
