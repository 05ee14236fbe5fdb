"""Every file of a committed checkpoint, damaged in every way: found, named, and gone around out loud."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from support.corrupt import corrupt
from support.runs.grown import WatchedRun, grow, opened

from ckptkit.checkpoint.read import load, verify
from ckptkit.errors import CorruptCheckpointError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage

# Saves at 3 and 6 by attempt 1, at 9 and 14 by attempt 2: all in mid-cycle, all at different weights.
FILES = {
    "weights": "checkpoints/{}/rank-00000/weights-000.safetensors",
    "optimizer": "checkpoints/{}/rank-00000/optimizer-000.safetensors",
    "accumulators": "checkpoints/{}/rank-00000/accumulators-000.safetensors",
    "rank": "checkpoints/{}/rank-00000.json",
    "manifest": "checkpoints/{}/manifest.json",
    "commit": "checkpoints/{}/COMMIT",
}
SHARED = ("frozen", "attempt")  # by all checkpoints of one attempt


class Grown:
    """The run's root, and the names of its four checkpoints, oldest first."""

    def __init__(self, root: Path, names: tuple[str, ...]) -> None:
        self.root = root
        self.names = names
        self.oldest, self.parent, self.previous, self.newest = names

    def key(self, file: str, name: str | None = None) -> str:
        name = name or self.newest
        if file == "attempt":
            return f"attempts/{name[1:7]}.json"
        if file == "frozen":
            (only,) = (self.root / "frozen" / name[:7]).iterdir()
            return f"frozen/{name[:7]}/{only.name}"
        return FILES[file].format(name)

    def path(self, file: str, name: str | None = None) -> Path:
        return self.root / self.key(file, name)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    root = tmp_path_factory.mktemp("template") / "run"
    return Grown(root, (*grow(root, 3, 6, embedding=1.0), *grow(root, 9, 14, embedding=2.0)))


@pytest.fixture
def grown(template, root):
    shutil.copytree(template.root, root)
    return Grown(root, template.names)


def swap(one: Path, other: Path) -> None:
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def cut(path: Path, keep) -> None:
    os.truncate(path, keep(path.stat().st_size))


DAMAGE = {
    "first-byte": lambda path: corrupt(path, at=0, mask=0xFF),
    "second-byte": lambda path: corrupt(path, at=1),
    "ninth-byte": lambda path: corrupt(path, at=8, mask=0x20),
    "a-third-in": lambda path: corrupt(path, at=path.stat().st_size // 3, mask=0x04),
    "middle-byte": corrupt,
    "last-byte": lambda path: corrupt(path, at=-1, mask=0x80),
    "one-byte-short": lambda path: cut(path, lambda size: size - 1),
    "half": lambda path: cut(path, lambda size: size // 2),
    "one-byte": lambda path: cut(path, lambda size: 1),
    "emptied": lambda path: cut(path, lambda size: 0),
    "a-nul-more": lambda path: append(path, b"\0"),
    "a-blank-more": lambda path: append(path, b" "),
    "a-newline-more": lambda path: append(path, b"\n"),
    "twice": lambda path: append(path, path.read_bytes()),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": lambda path: path.unlink(),
    "a-folder": lambda path: (path.unlink(), path.mkdir()),
}


def state_of(template: Grown, name: str) -> str:
    storage = LocalStorage(template.root)
    run = WatchedRun()
    run.apply(load(storage, opened(storage, name)))
    return run.digest()


def assert_goes_back(template, grown, caplog, expected, *, passed_over, blamed):
    """Start the run: it takes ``expected``, and tells in the log and in its attempt what it left aside."""
    run = WatchedRun()
    with caplog.at_level(logging.INFO, "ckptkit"):
        point = CheckpointManager(grown.root).restore(run)
    assert run.applied == [expected]
    assert point.checkpoint == expected
    assert run.digest() == state_of(template, expected)
    warnings = "\n".join(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert expected in warnings
    attempt = json.loads((grown.root / "attempts/000003.json").read_bytes())
    assert attempt["parent"] == expected
    assert [one["checkpoint"] for one in attempt["passed_over"]] == passed_over
    for one in attempt["passed_over"]:
        assert one["checkpoint"] in warnings
        assert any(key in one["reason"] for key in blamed), one
        assert one["reason"].splitlines()[0] in warnings


def assert_named_by_the_readers(grown, name, blamed):
    storage = LocalStorage(grown.root)
    with pytest.raises(CorruptCheckpointError) as caught:
        verify(storage, opened(storage, name))
    assert any(key in str(caught.value) for key in blamed)
    with pytest.raises(CorruptCheckpointError) as caught:
        _ = load(storage, opened(storage, name)).tensors
    assert any(key in str(caught.value) for key in blamed)


def assert_refused_when_chosen(grown, name, blamed):
    run = WatchedRun()
    before = run.digest()
    attempts = sorted(os.listdir(grown.root / "attempts"))
    with pytest.raises(CorruptCheckpointError) as caught:
        CheckpointManager(grown.root).restore(run, checkpoint=name)
    assert any(key in str(caught.value) for key in blamed)
    assert run.applied == []
    assert run.digest() == before
    assert sorted(os.listdir(grown.root / "attempts")) == attempts


def outcome(grown, file):
    """What a start takes when this file of the newest checkpoint is damaged, and what it passes over."""
    if file == "frozen":
        return grown.parent, [grown.newest, grown.previous]
    if file == "attempt":
        return grown.parent, ["attempts/000002.json"]
    return grown.previous, [grown.newest]


# Without COMMIT there is no checkpoint, hence no damaged one: that has a test of its own.
DAMAGED = [(file, damage) for file in (*FILES, *SHARED) for damage in DAMAGE if (file, damage) != ("commit", "deleted")]


@pytest.mark.parametrize(("file", "damage"), DAMAGED)
def test_damaged_file_is_named_and_passed_over(template, grown, caplog, file, damage):
    key = grown.key(file)
    DAMAGE[damage](grown.path(file))
    assert_named_by_the_readers(grown, grown.newest, [key])
    assert_refused_when_chosen(grown, grown.newest, [key])
    expected, passed_over = outcome(grown, file)
    assert_goes_back(template, grown, caplog, expected, passed_over=passed_over, blamed=[key])


@pytest.mark.parametrize("file", [*FILES, *SHARED])
def test_an_undamaged_run_says_nothing(grown, caplog, file):
    """The counterpart: the same start without damage takes the newest and warns of nothing."""
    path = grown.path(file)
    path.write_bytes(path.read_bytes())
    run = WatchedRun()
    with caplog.at_level(logging.WARNING, "ckptkit"):
        CheckpointManager(grown.root).restore(run)
    assert run.applied == [grown.newest]
    assert caplog.text == ""


def test_a_folder_without_commit_is_no_checkpoint(grown, caplog):
    grown.path("commit").unlink()
    run = WatchedRun()
    with caplog.at_level(logging.WARNING, "ckptkit"):
        CheckpointManager(grown.root).restore(run)
    assert run.applied == [grown.previous]
    assert caplog.text == ""
    assert grown.newest not in [one.name for one in CheckpointManager(grown.root).checkpoints()]


@pytest.mark.parametrize("file", list(FILES))
def test_file_copied_from_another_checkpoint_is_noticed(template, grown, caplog, file):
    blamed = [grown.key(file), grown.key("manifest")]  # a foreign COMMIT is sound, but not of this manifest
    shutil.copyfile(grown.path(file, grown.previous), grown.path(file))
    assert_named_by_the_readers(grown, grown.newest, blamed)
    assert_goes_back(template, grown, caplog, grown.previous, passed_over=[grown.newest], blamed=blamed)


@pytest.mark.parametrize("file", list(FILES))
def test_swapped_with_the_same_file_of_another_checkpoint(template, grown, caplog, file):
    names = [grown.newest, grown.previous]
    blamed = [grown.key(one, name) for one in (file, "manifest") for name in names]
    swap(grown.path(file), grown.path(file, grown.previous))
    for name in names:
        assert_named_by_the_readers(grown, name, [grown.key(one, name) for one in (file, "manifest")])
        assert_refused_when_chosen(grown, name, blamed)
    assert_goes_back(template, grown, caplog, grown.parent, passed_over=names, blamed=blamed)


@pytest.mark.parametrize("file", ["weights", "rank", "manifest", "commit"])
def test_swapped_with_the_same_file_of_another_attempt(template, grown, caplog, file):
    names = [grown.newest, grown.parent]
    blamed = [grown.key(one, name) for one in (file, "manifest") for name in names]
    swap(grown.path(file), grown.path(file, grown.parent))
    for name in names:
        assert_named_by_the_readers(grown, name, [grown.key(one, name) for one in (file, "manifest")])
    assert_goes_back(template, grown, caplog, grown.previous, passed_over=[grown.newest], blamed=blamed)


PAIRS = [
    ("weights", "optimizer"),
    ("weights", "accumulators"),
    ("optimizer", "accumulators"),
    ("rank", "weights"),
    ("rank", "manifest"),
    ("rank", "commit"),
    ("manifest", "commit"),
    ("weights", "frozen"),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_swapped_with_another_file_of_the_checkpoint(template, grown, caplog, one, other):
    blamed = [grown.key(one), grown.key(other)]
    swap(grown.path(one), grown.path(other))
    assert_named_by_the_readers(grown, grown.newest, blamed)
    expected, passed_over = outcome(grown, other)
    assert_goes_back(template, grown, caplog, expected, passed_over=passed_over, blamed=blamed)


def test_swapped_frozen_shards_leave_nothing_usable(grown, monkeypatch):
    swap(grown.path("frozen"), grown.path("frozen", grown.parent))
    assert_nothing_usable(grown, grown.names, monkeypatch)


def test_attempt_documents_swapped_leave_nothing_to_use(grown, monkeypatch):
    swap(grown.path("attempt"), grown.path("attempt", grown.parent))
    assert_nothing_usable(grown, ["attempts/000001.json", "attempts/000002.json"], monkeypatch)


@pytest.mark.parametrize(
    "mask", [None, *(pytest.param(mask, marks=pytest.mark.extended) for mask in (0x01, 0x20, 0x80))]
)
@pytest.mark.parametrize("file", ["commit", "attempt"])
def test_every_single_byte_of_a_sealed_document_counts(grown, file, mask):
    path, key = grown.path(file), grown.key(file)
    whole = path.read_bytes()
    for position in range(len(whole)):
        corrupt(path, at=position, mask=mask or 1 << position % 8)
        listed = {one.name: one.problem for one in CheckpointManager(grown.root).checkpoints()}
        assert key in (listed[grown.newest] or ""), position
        assert listed[grown.parent] is None
        path.write_bytes(whole)
    assert all(one.problem is None for one in CheckpointManager(grown.root).checkpoints())


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.extended)])
@pytest.mark.parametrize("file", ["manifest", "rank", "weights", "accumulators", "frozen"])
def test_every_single_byte_of_the_other_files_counts(grown, file, stride):
    storage = LocalStorage(grown.root)
    path, key = grown.path(file), grown.key(file)
    whole = path.read_bytes()
    for position in range(0, len(whole), stride):
        corrupt(path, at=position, mask=1 << position % 8)
        with pytest.raises(CorruptCheckpointError, match=key):
            verify(storage, opened(storage, grown.newest))
        path.write_bytes(whole)
    verify(storage, opened(storage, grown.newest))


def assert_nothing_usable(grown, named, monkeypatch):
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")  # the message lists all of them
    run = WatchedRun()
    before = run.digest()
    attempts = sorted(os.listdir(grown.root / "attempts"))
    with pytest.raises(CorruptCheckpointError) as caught:
        CheckpointManager(grown.root).restore(run)
    for one in named:
        assert one in str(caught.value)
    assert run.applied == []
    assert run.digest() == before
    assert sorted(os.listdir(grown.root / "attempts")) == attempts


@pytest.mark.parametrize("damage", ["middle-byte", "emptied", "deleted"])
@pytest.mark.parametrize("file", ["weights", "rank", "manifest"])
def test_only_corrupt_checkpoints_never_give_fresh_start(grown, file, damage, monkeypatch):
    """If all are corrupt, the error names each of them."""
    for name in grown.names:
        DAMAGE[damage](grown.path(file, name))
    assert_nothing_usable(grown, [*grown.names, *(grown.key(file, name) for name in grown.names)], monkeypatch)


def test_many_corrupt_checkpoints_fill_four_lines(grown):
    for name in grown.names:
        DAMAGE["deleted"](grown.path("manifest", name))
    with pytest.raises(CorruptCheckpointError) as caught:
        CheckpointManager(grown.root).restore(WatchedRun())
    first, *listed, last = str(caught.value).splitlines()
    assert "start under another root" in first
    assert [line.split(":")[0].strip() for line in listed] == list(grown.names[:-3:-1])
    assert last == f"  and {len(grown.names) - 2} more; CKPTKIT_DEBUG=1 lists them"


@pytest.mark.parametrize("damage", ["middle-byte", "emptied"])
def test_only_corrupt_commits_never_give_fresh_start(grown, damage, monkeypatch):
    for name in grown.names:
        DAMAGE[damage](grown.path("commit", name))
    assert_nothing_usable(grown, [grown.key("commit", name) for name in grown.names], monkeypatch)


@pytest.mark.parametrize("damage", ["middle-byte", "emptied", "deleted"])
def test_lost_attempt_documents_never_give_fresh_start(grown, damage, monkeypatch):
    for name in (grown.parent, grown.newest):
        DAMAGE[damage](grown.path("attempt", name))
    assert_nothing_usable(grown, [grown.newest], monkeypatch)


@pytest.mark.parametrize("damage", ["middle-byte", "deleted"])
def test_damaged_middle_attempt_is_passed_over_whole(template, grown, caplog, damage):
    """As it would be if the start after it, which has saved nothing yet, had not been."""
    CheckpointManager(grown.root).restore(WatchedRun())
    DAMAGE[damage](grown.path("attempt"))
    run = WatchedRun()
    with caplog.at_level(logging.WARNING, "ckptkit"):
        CheckpointManager(grown.root).restore(run)
    assert run.applied == [grown.parent]
    assert run.digest() == state_of(template, grown.parent)
    assert "attempts/000002.json" in caplog.text


def test_newer_attempt_needs_no_earlier_documents(grown):
    (name,) = grow(grown.root, 16)
    DAMAGE["middle-byte"](grown.path("attempt"))
    run = WatchedRun()
    CheckpointManager(grown.root).restore(run)
    assert run.applied == [name]
    attempt = json.loads((grown.root / "attempts/000004.json").read_bytes())
    assert {one["checkpoint"] for one in attempt["passed_over"]} <= {"attempts/000002.json"}


def test_it_goes_back_as_far_as_it_must(template, grown, caplog):
    for name, file in ((grown.newest, "commit"), (grown.previous, "optimizer"), (grown.parent, "rank")):
        DAMAGE["middle-byte"](grown.path(file, name))
    assert_goes_back(
        template,
        grown,
        caplog,
        grown.oldest,
        passed_over=[grown.newest, grown.previous, grown.parent],
        blamed=[
            grown.key("commit"),
            grown.key("optimizer", grown.previous),
            grown.key("rank", grown.parent),
        ],
    )


def test_an_older_damage_does_not_matter(grown, caplog):
    DAMAGE["middle-byte"](grown.path("weights", grown.previous))
    run = WatchedRun()
    with caplog.at_level(logging.WARNING, "ckptkit"):
        CheckpointManager(grown.root).restore(run)
    assert run.applied == [grown.newest]
    assert caplog.text == ""


def test_what_was_passed_over_is_kept_as_evidence(grown):
    """Saves and retention of the attempts after it leave the corrupt checkpoint where it is."""
    DAMAGE["middle-byte"](grown.path("manifest"))
    names = grow(grown.root, 20, 24, 28)
    listed = [one.name for one in CheckpointManager(grown.root).checkpoints()]
    assert grown.newest in listed
    assert listed[-1] == names[-1]
    assert grown.path("weights").exists()


def test_run_continues_from_older_checkpoint_after_corruption(grown):
    DAMAGE["middle-byte"](grown.path("manifest"))
    (name,) = grow(grown.root, 10)
    run = WatchedRun()
    CheckpointManager(grown.root).restore(run)
    assert (run.applied, run.batches) == ([name], 10)
