"""A start where documents were lost."""

import re
from datetime import timedelta

import pytest
from support.runs.ranks import Mortal, live
from support.runs.roots import root_at
from support.thread_ranks import results_of, run_ranks

from ckptkit.errors import CorruptCheckpointError
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import FaultyStorage


def alone(storage, until):
    act = lambda world: live(storage, Mortal(world, FaultyStorage(storage)), until, final=True)  # noqa: E731
    return run_ranks(1, act, timeout=timedelta(seconds=60))[0]


SHARDS = r".*\.safetensors"


@pytest.mark.parametrize("kept", [SHARDS, rf"{SHARDS}|run.json|attempts/000001.json", rf"frozen/{SHARDS}"])
def test_shards_without_documents_are_no_fresh_start(tmp_path, kept):
    for until in (6, 18):
        results_of([alone(LocalStorage(tmp_path), until)])
    root = root_at(tmp_path)
    root.remove(*(key for key in root.tree() if not re.fullmatch(kept, key)))
    left = root.tree()
    with pytest.raises(CorruptCheckpointError, match="its documents are lost"):
        results_of([alone(LocalStorage(tmp_path), 20)])
    assert root.tree() == left
