"""An answer with a wrong bit, or one that is cut off: the file is read once more before it is called corrupt."""

import itertools
import json
import logging
import shutil
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.corrupt import corrupt
from support.runs.grown import WatchedRun, grow, opened, run_at
from support.told_watch import ToldWatch
from support.wire import Wire

from ckptkit.checkpoint import read, shard_bytes
from ckptkit.checkpoint.read import load, verify
from ckptkit.errors import CorruptCheckpointError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.catalog import list_rows
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents
from ckptkit.storage import LocalStorage
from ckptkit.tools.copy.copy import CopyRequest, copy_run
from ckptkit.tools.verify import audit

NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)
FILES = ["*/weights-000.safetensors", "*/accumulators-000.safetensors", "frozen/*", "*/rank-00000.json"]
FILES += ["*/manifest.json", "*/COMMIT", "attempts/*", "run.json"]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template") / "run"
    return root, grow(root, 3, 6)


@pytest.fixture
def newest(template, root):
    shutil.copytree(template[0], root)
    return template[1][-1]


@pytest.mark.parametrize("reads", ["files", "lanes", "fetched"])
def test_one_wrong_answer_costs_a_start_nothing(template, tmp_path, reads, monkeypatch, caplog):
    monkeypatch.setattr(read, "_LANES_FROM_BYTES", 0 if reads == "lanes" else 1 << 40)
    monkeypatch.setattr(shard_bytes, "FEW", 0)
    monkeypatch.setattr(LocalStorage, "window_bytes", 64 if reads == "lanes" else 1 << 20)
    for number, (key, how) in enumerate(itertools.product(FILES, ("flip", "cut"))):
        root = tmp_path / str(number)
        shutil.copytree(template[0], root)
        wire = Wire(LocalStorage(root), key, how, is_remote=reads == "fetched")
        run = WatchedRun()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "ckptkit"):
            CheckpointManager(wire).restore(run)
        assert (run.applied, wire.fired) == (template[1][-1:], 1), (key, how)
        assert run.digest() == run_at(6).digest()
        assert "It was read once more, and is intact" in caplog.text
        assert json.loads((root / "attempts/000002.json").read_bytes())["passed_over"] == []


def copied(wire, root):
    copy = Path(tempfile.mkdtemp(dir=root.parent)) / "copy"
    done = copy_run(wire, LocalStorage(copy), CopyRequest(None, lambda: NOW, lambda: "1" * 32), ToldWatch())
    files = [path.relative_to(copy) for path in copy.rglob("*") if path.is_file()]
    same = [one for one in files if not {"run.json", ".reserve"} & {*one.parts}]
    return done.corrupt == {} and same and all((copy / one).read_bytes() == (root / one).read_bytes() for one in same)


READERS = {
    "verify": lambda wire, newest, root: verify(wire, opened(wire, newest)) is None,
    "audit": lambda wire, newest, root: audit(wire, ToldWatch()).is_fine,
    "copy": lambda wire, newest, root: copied(wire, root),
    "ls": lambda wire, newest, root: not any(row.problem for row in list_rows(wire, None).shown),
    "events": lambda wire, newest, root: read_events(wire, Documents(wire)).problems == {},
}


@pytest.mark.parametrize("reader", READERS)
def test_one_wrong_answer_is_no_finding(newest, root, reader):
    fired = set()
    for key, how in itertools.product((*FILES, "events/*"), ("flip", "cut")):
        wire = Wire(LocalStorage(root), key, how)
        assert READERS[reader](wire, newest, root), (key, how)
        fired |= {key} if wire.fired else set()
    expected = {"ls": {"*/manifest.json", "*/COMMIT", "attempts/*"}, "events": {"events/*"}}
    assert fired >= expected.get(reader, {*FILES} - {"run.json"})


@pytest.mark.parametrize("key", ["*/weights-000.safetensors", "*/manifest.json"])
def test_what_is_corrupt_is_read_twice_at_most(newest, root, key):
    wire = Wire(LocalStorage(root), "*/weights-000.safetensors", "cut")  # to a peek
    assert load(wire, opened(wire, newest)).peek("weights").tobytes() == run_at(6).weights.tobytes()
    assert wire.fired == 1
    (path,) = (root / "checkpoints" / newest).rglob(key.rpartition("/")[2])
    corrupt(path)
    wire = Wire(LocalStorage(root), "", "flip")
    with pytest.raises(CorruptCheckpointError):
        verify(wire, opened(wire, newest))
    assert sum(call.keys == (str(path.relative_to(root)),) for call in wire.calls) == 2
