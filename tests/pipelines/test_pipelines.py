"""Each pipeline, interrupted anywhere, goes on with exactly the batches of the uninterrupted run, or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .files import write_files
from .zoo import KINDS

# Several pipelines share a process, since importing MindSpore takes longer than most of them.
GROUPS = [sorted(KINDS)[first::4] for first in range(4)]


def process(jobs):
    """What a fresh process finds."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.pipelines.process", json.dumps(jobs)],
        capture_output=True,
        text=True,
        timeout=500,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "GLOG_v": "3"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def interrupted_and_resumed(names, tmp_path, wanted):
    """Each of ``names`` trained through, and resumed in another process from every checkpoint of it."""
    write_files(tmp_path)
    place = {name: (str(tmp_path / "runs" / name), str(tmp_path)) for name in names}
    whole = dict(zip(names, process([["record", name, *place[name], wanted] for name in names]), strict=True))
    cuts = [(name, int(at), saved) for name in names for at, saved in whole[name]["saved"].items()]
    after = process([["resume", name, *place[name], saved] for name, _, saved in cuts])
    for (name, at, _), found in zip(cuts, after, strict=True):
        judge(name, at, whole[name]["digests"], found)


def judge(name, at, digests, found):
    kind, log = KINDS[name], "\n".join(found["log"])
    where = f"{name} after {at} of {len(digests)} batches"
    assert ("draws from the global generators" in log) == (kind.draws and "refused" not in found), where
    if kind.way == "inexact":
        return
    assert found.get("digests") == digests[at:], (where, found.get("refused"))
    assert ("replaying the data" in log) == (kind.way == "replay"), where
    assert ("replaying it instead" in log) == (name == "map-declared-wrongly"), where


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_every_pipeline_goes_on_exactly_or_says_why_not(names, tmp_path):
    interrupted_and_resumed(names, tmp_path, "covering")


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_pipeline_at_every_batch(name, tmp_path):
    interrupted_and_resumed([name], tmp_path, "every")
