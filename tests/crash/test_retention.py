"""Retention with a memory: what it remembers must not make it delete what it would keep if it looked."""

import json
import math

import pytest
from support.runs.forge import sealed
from support.runs.grown import train
from support.runs.scenario import check_new_start, committed, corrupt, name_at

from ckptkit.checkpoint.receipts import post_certificate
from ckptkit.errors import StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.run.index import Index
from ckptkit.run.keep_policy import KeepBest, KeepCertified, KeepEvery, KeepLatest
from ckptkit.run.retention import Retention
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage

from .lives import started

ALL = KeepLatest(100)


def retention(root, keep, number=1):
    storage = FaultyStorage(LocalStorage(root))
    return storage, Retention(storage, Index(LocalStorage(root)).document(number), keep)


def pruned(retention):
    return [str(name) for name in retention.prune()]


def test_retention_ignores_remembered_commit_without_marker(root):
    life = started(root, 2, 4, 6, keep=ALL)
    _, keeping = retention(root, KeepLatest(2))
    assert pruned(keeping) == [name_at(1, 2)]
    life.saved_at(8)
    # Somebody removes the markers of both that are remembered, and leaves the data.
    for batches in (6, 8):
        (root / f"checkpoints/{name_at(1, batches)}/COMMIT").unlink()
    assert pruned(keeping) == []
    assert committed(root) == [name_at(1, 4)]
    life.saved_at(9)
    life.saved_at(10)
    assert pruned(keeping) == [name_at(1, 4)]
    check_new_start(root, latest=name_at(1, 10))


def torn(document: bytes) -> bytes:
    return document[:-1]


def newer(document: bytes) -> bytes:
    return sealed({**json.loads(document), "format_version": 99})


def test_unusable_attempt_document_blocks_retention(tmp_path, caplog):
    for place, number, unusable in ("the parent's", 1, torn), ("a newer parent's", 1, newer), ("the own", 2, torn):
        root = tmp_path / place
        started(root, 2, 4, 6, keep=ALL)
        life = started(root, 8, *([9, 10] if number == 2 else []), keep=ALL)
        _, keeping = retention(root, KeepLatest(100), number=2)
        assert pruned(keeping) == []
        _, keeping = retention(root, KeepLatest(1), number=2)
        keeping._list()  # the documents are known from here on
        document = root / f"attempts/{number:06d}.json"
        sound = document.read_bytes()
        document.write_bytes(unusable(sound))
        before = committed(root)
        caplog.clear()
        assert pruned(keeping) == [], place
        assert f"attempts/{number:06d}.json" in caplog.text
        assert committed(root) == before
        document.write_bytes(sound)
        assert len(pruned(keeping)) == len(before) - 2
        assert life.saved_at(11)


def test_commit_that_arrives_late_is_removed_whatever_the_policy(root, caplog):
    """Its process stood still, and retention has removed the checkpoint meanwhile."""
    life = started(root, 2, 4, 6, 8, keep=ALL)
    commit = root / f"checkpoints/{name_at(1, 2)}/COMMIT"
    late = commit.read_bytes()
    _, keeping = retention(root, KeepBest(1, "loss", "min"))
    assert pruned(keeping) == [name_at(1, 2), name_at(1, 4)]
    commit.parent.mkdir()
    commit.write_bytes(late)
    life.saved_at(9)
    assert pruned(keeping) == [name_at(1, 2), name_at(1, 6)]
    assert not commit.exists()
    assert "cannot be read" not in caplog.text


def test_retention_rereads_uncommitted_folder_every_time(root):
    """It may be committed by its own save at any moment; only what cannot change is remembered."""
    life = started(root, 2, 4, 6, keep=ALL)
    path = root / f"checkpoints/{name_at(1, 6)}/COMMIT"
    data = path.read_bytes()
    path.unlink()
    _, keeping = retention(root, KeepLatest(2))
    assert pruned(keeping) == []
    path.write_bytes(data)
    assert pruned(keeping) == [name_at(1, 2)]
    assert CheckpointName.parse(name_at(1, 6)) in Index(LocalStorage(root)).names
    assert life.saved_at(8)


def test_best_and_unreadable_metrics_outlive_retention(tmp_path, caplog):
    for mode, best in ("min", 6), ("max", 4):
        root = tmp_path / mode
        life = started(root, keep=ALL)
        for batches, loss in ((2, 0.2), (4, 0.9), (6, 0.1), (8, math.nan), (9, 0.5), (10, 0.5)):
            train(life.run, batches)
            life.manager.save(life.run, metrics={"loss": loss}).result()
        corrupt(root, name_at(1, 2), "manifest.json")
        _, keeping = retention(root, KeepBest(1, "loss", mode))
        caplog.clear()
        assert pruned(keeping) == [name_at(1, gone) for gone in (4, 6, 8) if gone != best], mode
        assert f"{name_at(1, 2)} is kept, because its metrics cannot be read" in caplog.text
        assert committed(root) == [name_at(1, left) for left in (2, best, 9, 10)]


def certify(root, batches, begin):
    names = [CheckpointName.parse(name_at(1, one)) for one in (batches, begin)]
    post_certificate(LocalStorage(root), *names)


def test_newest_certified_checkpoints_stay(tmp_path):
    started(tmp_path, 2, 4, 6, 8, 10, keep=ALL)
    certify(tmp_path, 4, 2)
    _, one = retention(tmp_path, KeepCertified(1) | KeepEvery(1000))
    one.prune()
    assert committed(tmp_path) == [name_at(1, batches) for batches in (4, 8, 10)]
    certify(tmp_path, 8, 4)
    one.prune()
    assert committed(tmp_path) == [name_at(1, batches) for batches in (8, 10)]
    check_new_start(tmp_path, latest=name_at(1, 10))


def test_nothing_goes_while_certificates_cannot_be_listed(tmp_path):
    started(tmp_path, 2, 4, 6, 8, keep=ALL)
    certify(tmp_path, 2, 4)
    storage, one = retention(tmp_path, KeepCertified(1))
    fault = Fault("error", operations={"list"}, key="checkpoints/*/receipts")
    storage.inject(fault)
    with pytest.raises(StorageError, match="injected failure before list"):
        one.prune()
    assert len(committed(tmp_path)) == 4
