"""A start where documents were lost, or are not there yet."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from support.runs.ranks import Life, Mortal, digests_at, live
from support.runs.roots import root_at
from support.thread_ranks import Ended, results_of, run_ranks

from ckptkit.errors import CorruptCheckpointError
from ckptkit.storage import LocalStorage, Storage
from ckptkit.testing.faults import Fault, FaultyStorage, Killed

COMMITS = "checkpoints/*/COMMIT"


def alone(storage: Storage, until: int) -> Ended[Life]:
    act = lambda world: live(storage, Mortal(world, FaultyStorage(storage)), until, final=True)  # noqa: E731
    return run_ranks(1, act, timeout=timedelta(seconds=60))[0]


def first_save_interrupted(root: Path) -> None:
    dying = FaultyStorage(LocalStorage(root), [Fault("kill", operations={"create"}, key=COMMITS)])
    assert isinstance(alone(dying, 6).error, Killed)


@pytest.mark.parametrize("kept", [r".*\.safetensors", r".*\.safetensors|run.json|attempts/000001.json"])
def test_shards_without_documents_are_no_fresh_start(tmp_path: Path, kept: str) -> None:
    """Also where the documents of an earlier start are left."""
    for until in (6, 18):
        results_of([alone(LocalStorage(tmp_path), until)])
    root = root_at(tmp_path)
    root.remove(*(key for key in root.tree() if not re.fullmatch(kept, key)))
    left = root.tree()
    with pytest.raises(CorruptCheckpointError, match="its documents are lost"):
        results_of([alone(LocalStorage(tmp_path), 20)])
    assert root.tree() == left


def test_frozen_shards_without_documents_are_no_fresh_start(tmp_path: Path) -> None:
    file = tmp_path / "frozen" / "a000001" / "rank-00000" / "weights-000.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"bits")
    with pytest.raises(CorruptCheckpointError, match="its documents are lost"):
        results_of([alone(LocalStorage(tmp_path), 6)])


def test_damaged_run_json_does_not_refuse_a_run_whose_first_save_was_interrupted(tmp_path: Path) -> None:
    first_save_interrupted(tmp_path)
    (tmp_path / "run.json").write_bytes(b"{")
    assert results_of([alone(LocalStorage(tmp_path), 6)])[0].digest == digests_at(1, 6)[0]


@pytest.mark.parametrize("at", [{"operations": {"create"}, "key": "attempts/*"}, {"operations": {"list"}}])
def test_start_beside_one_that_begins_its_first_save_is_no_loss(tmp_path: Path, at) -> None:
    """What that one wrote came after this one had looked for documents."""
    storage = FaultyStorage(LocalStorage(tmp_path), [Fault(lambda: first_save_interrupted(tmp_path), **at)])
    assert results_of([alone(storage, 6)])[0].digest == digests_at(1, 6)[0]
