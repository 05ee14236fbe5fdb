"""The sweep of a start: what it learns from one walk, and what may change before it acts on it."""

import os

import pytest
from support.runs.scenario import (
    AT_8,
    check_new_start,
    check_void_before_delete,
    committed,
    history,
    name_at,
    tree,
)

from ckptkit.errors import StaleAttemptError
from ckptkit.format.documents import Void, encode
from ckptkit.run.index import Index
from ckptkit.run.retention import sweep
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage

from .lives import killed_saving, started


@pytest.fixture
def root(tmp_path):
    history(tmp_path / "run")
    return tmp_path / "run"


def put(root, key, data=b"x"):
    path = root / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def reads(storage):
    return [key for call in storage.calls if call.operation == "read" for key in call.keys]


def test_sweep_reads_only_void_sized_commits_with_data(root):
    killed_saving(root, 8)
    storage, document = owner(root)
    put(root, f"checkpoints/{name_at(1, 9)}/COMMIT", encode(Void(void_by="1" * 32)))
    put(root, f"checkpoints/{name_at(1, 10)}/COMMIT", encode(Void(void_by="1" * 32)))
    put(root, f"checkpoints/{name_at(1, 10)}/manifest.json")
    assert [str(name) for name in sweep(storage, document, has_mirror=False)] == [name_at(1, 10), AT_8]
    # The last one is looked at again before its attempt's frozen shards go.
    assert reads(storage)[1:] == [f"checkpoints/{name}/COMMIT" for name in (name_at(1, 10), name_at(1, 10), AT_8, AT_8)]
    check_void_before_delete(storage.calls, [name_at(1, 10)])
    assert len(committed(root)) == 2
    again = FaultyStorage(LocalStorage(root))
    assert sweep(again, document, has_mirror=False) == []
    assert reads(again) == ["attempts/000003.json"]


def test_commit_before_void_keeps_frozen_shards(tmp_path):
    """Its folder was not there at the walk at all, or not even when the shards were to go."""
    rows = [{"operations": {"list"}, "key": "frozen"}, {"operations": {"walk"}, "key": "checkpoints/a*"}]
    for number, where in enumerate(rows):
        root = tmp_path / f"{number}"
        history(root)
        started(root, 8)
        put(root, f"checkpoints/{name_at(2, 9)}/COMMIT", encode(Void(void_by="1" * 32)))  # else its shards stay anyway
        storage, document = owner(root)
        moved = tmp_path / "moved"
        os.rename(root / "checkpoints" / AT_8, moved)
        back = Fault(
            lambda root=root, moved=moved: os.rename(moved, root / "checkpoints" / AT_8), when="after", **where
        )
        storage.inject(back)
        sweep(storage, document, has_mirror=False)
        assert back.fired == 1
        check_new_start(root, latest=AT_8)


# By the place of a file whose write has not ended, whether a second attempt clears it.
UNFINISHED = {
    "attempts/.000001.json": True,
    "attempts/.000002.json": False,
    "attempts/.000003.json": False,
    "attempts/.1.json": False,
    f"checkpoints/{name_at(1, 9)}/.COMMIT": True,
    f"checkpoints/{name_at(1, 4)}/.COMMIT": True,
    f"checkpoints/{name_at(2, 9)}/.COMMIT": False,
    f"checkpoints/{name_at(3, 9)}/.COMMIT": False,
    "checkpoints/a000001-not-a-name/.COMMIT": False,
    f"checkpoints/.{name_at(1, 9)}": False,
    "frozen/a000001/.x.safetensors": True,
    "frozen/a000002/.x.safetensors": False,
    "frozen/a000003/.x.safetensors": False,
    "frozen/.a000001": False,
    "elsewhere/a000001/.x": False,
    ".run.json": True,
    ".run.json.txt": False,
}


def test_who_was_overtaken_clears_nothing(root):
    storage, document = owner(root)
    put(root, "attempts/000009.json")
    put(root, f"attempts/.000001.json{SUFFIX}")
    before = tree(root)
    with pytest.raises(StaleAttemptError):
        sweep(storage, document, has_mirror=False)
    assert tree(root) == before


def owner(root):
    """A new attempt that has not swept yet, as a storage and its document."""
    started(root, faults=[Fault("error", operations={"walk"}, key="checkpoints/", times=None)])
    number = max(int(path.stem) for path in (root / "attempts").iterdir())
    storage = FaultyStorage(LocalStorage(root))
    return storage, Index(LocalStorage(root)).document(number)


SUFFIX = ".0123456789abcdef.tmp"


def test_sweep_clears_only_earlier_attempts_unfinished_writes(root):
    storage, document = owner(root)
    assert document.attempt == 2
    for key in UNFINISHED:
        put(root, f"{key}{SUFFIX}")
    before = tree(root)
    sweep(storage, document, has_mirror=False)
    assert set(before) - set(tree(root)) == {f"{key}{SUFFIX}" for key, goes in UNFINISHED.items() if goes}


EMPTY = {
    f"checkpoints/{name_at(1, 9)}": True,
    f"checkpoints/{name_at(1, 8)}/rank-00000": True,
    f"checkpoints/{name_at(1, 4)}/receipts": True,
    f"checkpoints/{name_at(2, 9)}/rank-00000": False,
    f"checkpoints/{name_at(3, 9)}/rank-00000": False,
    "checkpoints/mine": False,
    "frozen/a000001": True,
    "frozen/a000002": False,
    "elsewhere/a000001": False,
}


def test_sweep_removes_only_earlier_attempts_empty_folders(root):
    storage, document = owner(root)
    for key in [key for key in tree(root) if key.startswith("frozen/a000001/")]:
        (root / key).unlink()
    for folder in EMPTY:
        (root / folder).mkdir(parents=True, exist_ok=True)
    before = tree(root)
    sweep(storage, document, has_mirror=False)
    assert {folder: not (root / folder).exists() for folder in EMPTY} == EMPTY
    assert tree(root) == before
    assert all((root / top).is_dir() for top in ("attempts", "checkpoints", "frozen"))
