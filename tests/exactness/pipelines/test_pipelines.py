"""Each pipeline, interrupted anywhere, goes on with exactly the batches of the uninterrupted run, or says why not."""

import json

import pytest
from support.process import run_python

from .files import write_files
from .zoo import KINDS

# Several pipelines share a process. The default suite has those whose resume another process could change, and others
# of each way; tests/unit/mindspore/data/test_dataset.py has nearly all in the process of the test.
DEFAULT = ["augmented-processes", "crop-workers", "loader-state", "map-numpy-processes", "map-python", "mindrecord"]
OTHERS = sorted(KINDS.keys() - {*DEFAULT})


def process(jobs, folder):
    """What a fresh process finds."""
    folder.mkdir()
    done = run_python("-m", "exactness.pipelines.process", json.dumps(jobs), folder=folder, timeout=500)
    return json.loads(done.expect(0).stdout.splitlines()[-1])


def judge(name, at, digests, resumed):
    kind, log = KINDS[name], resumed["log"]
    where = f"{name} after {at} of {len(digests)} batches"
    assert ("draws from the global generators" in log) == (kind.draws and "refused" not in resumed), where
    if kind.way == "inexact":
        return
    assert resumed.get("digests") == digests[at:], (where, resumed.get("refused"))
    assert ("replaying the data" in log) == (kind.way == "replay"), where
    assert ("replaying it instead" in log) == (name == "map-declared-wrongly"), where


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(DEFAULT, id="default"),
        *(pytest.param(OTHERS[first::4], id=OTHERS[first], marks=pytest.mark.extended) for first in range(4)),
    ],
)
def test_every_pipeline_resumes_exactly_or_explains(names, tmp_path):
    """Each of ``names`` is trained through, and resumed in another process from every checkpoint of it."""
    write_files(tmp_path)
    place = {name: (str(tmp_path / "runs" / name), str(tmp_path)) for name in names}
    recorded = process([["record", name, *place[name], None] for name in names], tmp_path / "recording")
    whole = dict(zip(names, recorded, strict=True))
    cuts = [(name, int(at), saved) for name in names for at, saved in whole[name]["saved"].items()]
    after = process([["resume", name, *place[name], saved] for name, _, saved in cuts], tmp_path / "resuming")
    for (name, at, _), resumed in zip(cuts, after, strict=True):
        judge(name, at, whole[name]["digests"], resumed)
