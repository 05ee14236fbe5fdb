"""Each pipeline, interrupted anywhere, goes on with exactly the batches of the uninterrupted run, or says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.process import run_python

from .files import write_files
from .zoo import KINDS

# Several pipelines share a process, since importing MindSpore takes longer than most of them.
# The default suite has every fourth pipeline.
GROUPS = [
    pytest.param(sorted(KINDS)[first::4], id=sorted(KINDS)[first], marks=[pytest.mark.extended] * (first != 2))
    for first in range(4)
]


def process(jobs, folder):
    """What a fresh process finds."""
    environment = {"GLOG_v": "3", "PYTHONPATH": str(Path(__file__).parents[2])}
    folder.mkdir()
    done = run_python(
        "-m", "exactness.pipelines.process", json.dumps(jobs), folder=folder, environment=environment, timeout=500
    )
    return json.loads(done.expect(0).stdout.splitlines()[-1])


def interrupted_and_resumed(names, tmp_path, wanted):
    """Each of ``names`` trained through, and resumed in another process from every checkpoint of it."""
    write_files(tmp_path)
    place = {name: (str(tmp_path / "runs" / name), str(tmp_path)) for name in names}
    recorded = process([["record", name, *place[name], wanted] for name in names], tmp_path / "recording")
    whole = dict(zip(names, recorded, strict=True))
    cuts = [(name, int(at), saved) for name in names for at, saved in whole[name]["saved"].items()]
    after = process([["resume", name, *place[name], saved] for name, _, saved in cuts], tmp_path / "resuming")
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


@pytest.mark.parametrize("names", GROUPS)
def test_every_pipeline_resumes_exactly_or_explains(names, tmp_path):
    interrupted_and_resumed(names, tmp_path, "covering")


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_pipeline_at_every_batch(name, tmp_path):
    interrupted_and_resumed([name], tmp_path, "every")
