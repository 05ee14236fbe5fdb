"""A start where documents were lost, or are not there yet."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from support.runs.ranks import Mortal, digests_at, live
from support.runs.roots import root_at
from support.thread_ranks import results_of, run_ranks

from ckptkit.errors import CorruptCheckpointError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage, Killed


def alone(storage, until):
    act = lambda world: live(storage, Mortal(world, FaultyStorage(storage)), until, final=True)  # noqa: E731
    return run_ranks(1, act, timeout=timedelta(seconds=60))[0]


def first_save_interrupted(root):
    dying = FaultyStorage(LocalStorage(root), [Fault("kill", operations={"create"}, key="checkpoints/*/COMMIT")])
    assert isinstance(alone(dying, 6).error, Killed)


@pytest.mark.parametrize("kept", [r".*\.safetensors", r".*\.safetensors|run.json|attempts/000001.json"])
def test_shards_without_documents_are_no_fresh_start(tmp_path, kept):
    for until in (6, 18):
        results_of([alone(LocalStorage(tmp_path), until)])
    root = root_at(tmp_path)
    root.remove(*(key for key in root.tree() if not re.fullmatch(kept, key)))
    left = root.tree()
    with pytest.raises(CorruptCheckpointError, match="its documents are lost"):
        results_of([alone(LocalStorage(tmp_path), 20)])
    assert root.tree() == left


def test_frozen_shards_without_documents_are_no_fresh_start(tmp_path):
    file = tmp_path / "frozen" / "a000001" / "rank-00000" / "weights-000.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"bits")
    with pytest.raises(CorruptCheckpointError, match="its documents are lost"):
        results_of([alone(LocalStorage(tmp_path), 6)])


@pytest.mark.parametrize("at", ["damaged", {"operations": {"create"}, "key": "attempts/*"}, {"operations": {"list"}}])
def test_run_whose_first_save_was_interrupted_is_no_loss(tmp_path, at):
    """With a damaged run.json; or interrupted after this start had looked for documents."""
    storage = LocalStorage(tmp_path)
    if at == "damaged":
        first_save_interrupted(tmp_path)
        (tmp_path / "run.json").write_bytes(b"{")
    else:
        storage = FaultyStorage(storage, [Fault(lambda: first_save_interrupted(tmp_path), **at)])
    assert results_of([alone(storage, 6)])[0].digest == digests_at(1, 6)[0]
