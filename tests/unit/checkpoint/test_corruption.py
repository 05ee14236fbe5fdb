"""Every file of a committed checkpoint, damaged in every way: found, named, and gone around out loud."""

import json
import logging
import os
import shutil
from pathlib import Path

import pytest
from support.corrupt import corrupt
from support.runs.grown import WatchedRun, grow, opened

from ckptkit.checkpoint.read import load, verify
from ckptkit.errors import CorruptCheckpointError, UnusableCheckpointError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.storage import LocalStorage

FILES = {
    "weights": "checkpoints/{0}/rank-00000/weights-000.safetensors",
    "rank": "checkpoints/{0}/rank-00000.json",
    "manifest": "checkpoints/{0}/manifest.json",
    "commit": "checkpoints/{0}/COMMIT",
    "attempt": "attempts/{1}.json",
}


class Grown:
    """The run's root, and the names of its four checkpoints, oldest first."""

    def __init__(self, root: Path, names: tuple[str, ...]) -> None:
        self.root, self.names = root, names
        _, self.parent, self.previous, self.newest = names

    def key(self, file: str, name: str | None = None) -> str:
        name = name or self.newest
        if file == "frozen":
            (only,) = (self.root / "frozen" / name[:7]).iterdir()
            return f"frozen/{name[:7]}/{only.name}"
        return FILES[file].format(name, name[1:7])

    def path(self, file: str, name: str | None = None) -> Path:
        return self.root / self.key(file, name)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Saves at 3 and 6 by attempt 1, at 9 and 14 by attempt 2: all in mid-cycle, all at different weights."""
    root = tmp_path_factory.mktemp("template") / "run"
    return Grown(root, (*grow(root, 3, 6, embedding=1.0), *grow(root, 9, 14, embedding=2.0)))


@pytest.fixture
def grown(template, root):
    shutil.copytree(template.root, root)
    return Grown(root, template.names)


DAMAGE = {
    "first-byte": lambda path: corrupt(path, at=0, mask=0xFF),
    "middle-byte": corrupt,
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "twice": lambda path: path.write_bytes(path.read_bytes() * 2),
    "one-byte-short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "a-blank-more": lambda path: path.write_bytes(path.read_bytes() + b" "),
    "deleted": lambda path: path.unlink(),
    "a-folder": lambda path: (path.unlink(), path.mkdir()),
}


def assert_goes_back(template, root, caplog, *, to, passed_over, blamed):
    """Start the run: it takes ``to``, and tells in the log and in its attempt what it left aside."""
    run = WatchedRun()
    caplog.clear()
    with caplog.at_level(logging.INFO, "ckptkit"):
        point = CheckpointManager(root).restore(run)
    assert (run.applied, point.checkpoint) == ([to], to)
    uninterrupted = WatchedRun()
    uninterrupted.apply(load(LocalStorage(template.root), opened(LocalStorage(template.root), to)))
    assert run.digest() == uninterrupted.digest()
    warnings = "\n".join(r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    attempt = json.loads((root / "attempts/000003.json").read_bytes())
    assert attempt["parent"] == to
    assert [one["checkpoint"] for one in attempt["passed_over"]] == passed_over
    for one in attempt["passed_over"]:
        assert any(key in one["reason"] for key in blamed), one
        for said in (to, one["checkpoint"], one["reason"].splitlines()[0]):
            assert said in warnings


def assert_refused(root, blamed, checkpoint="latest"):
    """A start raises, having changed nothing, and names what is damaged."""
    run = WatchedRun()
    before, attempts = run.digest(), sorted(os.listdir(root / "attempts"))
    with pytest.raises(CorruptCheckpointError) as caught:
        CheckpointManager(root).restore(run, checkpoint=checkpoint)
    assert (run.applied, run.digest()) == ([], before)
    assert sorted(os.listdir(root / "attempts")) == attempts
    assert any(key in str(caught.value) for key in blamed)
    return str(caught.value)


@pytest.mark.parametrize("file", [*FILES, "frozen"])
def test_damaged_file_is_named_and_passed_over(template, tmp_path, caplog, file):
    """The last damage: the file of the checkpoint before is in its place; a foreign COMMIT is sound."""
    newest, key = template.newest, template.key(file)
    expected, passed_over = {
        "frozen": (template.parent, [newest, template.previous]),
        "attempt": (template.parent, ["attempts/000002.json"]),
    }.get(file, (template.previous, [newest]))
    foreign = template.path(file, template.parent if file in ("frozen", "attempt") else template.previous)
    for damage, change in {**DAMAGE, "foreign": lambda path: shutil.copyfile(foreign, path)}.items():
        if (file, damage) == ("commit", "deleted"):
            continue  # without COMMIT there is no checkpoint, hence no damaged one
        root = tmp_path / damage
        shutil.copytree(template.root, root)
        change(root / key)
        blamed = [key, *([template.key("manifest")] if (file, damage) == ("commit", "foreign") else [])]
        storage = LocalStorage(root)
        for read in (verify, lambda *given: load(*given).tensors):
            with pytest.raises(CorruptCheckpointError) as caught:
                read(storage, opened(storage, newest))
            assert any(one in str(caught.value) for one in blamed), damage
        assert_refused(root, blamed, newest)
        assert_goes_back(template, root, caplog, to=expected, passed_over=passed_over, blamed=blamed)


@pytest.mark.parametrize("file", ["commit", "attempt", "manifest", "rank", "weights", "frozen"])
def test_every_single_byte_of_every_file_counts(grown, file):
    storage, path, key = LocalStorage(grown.root), grown.path(file), grown.key(file)
    whole = path.read_bytes()
    for position in range(0, len(whole), 1 if file in ("commit", "attempt") else 3):
        corrupt(path, at=position, mask=1 << position % 8)
        with pytest.raises(UnusableCheckpointError, match=key):
            verify(storage, opened(storage, grown.newest))
        path.write_bytes(whole)
    verify(storage, opened(storage, grown.newest))


def test_only_corrupt_checkpoints_never_give_fresh_start(template, tmp_path, monkeypatch):
    """If all are corrupt, or the attempts' documents are, the error names each of them."""
    monkeypatch.setenv("CKPTKIT_DEBUG", "1")  # the message lists all of them
    rows = [
        (damage, file) for file in ("weights", "rank", "manifest", "commit") for damage in ("middle-byte", "emptied")
    ]
    rows += [("deleted", "manifest"), *((damage, "attempt") for damage in ("middle-byte", "emptied", "deleted"))]
    for damage, file in rows:
        root = tmp_path / f"{damage}-{file}"
        shutil.copytree(template.root, root)
        keys = {template.key(file, name) for name in template.names}
        for key in keys:
            DAMAGE[damage](root / key)
        said = assert_refused(root, template.names)
        named = [template.newest] if file == "attempt" else keys
        assert [one for one in named if one not in said] == [], (damage, file)


def test_many_corrupt_checkpoints_fill_four_lines(grown):
    for name in grown.names:
        DAMAGE["deleted"](grown.path("manifest", name))
    first, *listed, last = assert_refused(grown.root, grown.names).splitlines()
    assert "start under another root" in first
    assert [line.split(":")[0].strip() for line in listed] == list(grown.names[:-3:-1])
    assert last == f"  and {len(grown.names) - 2} more; CKPTKIT_DEBUG=1 lists them"


def test_undamaged_newest_checkpoint_is_taken_without_a_word(template, tmp_path, caplog):
    """Whatever an older one has; and a folder without COMMIT is no checkpoint."""
    older, without_commit = tmp_path / "older", tmp_path / "without"
    for root in (older, without_commit):
        shutil.copytree(template.root, root)
    DAMAGE["middle-byte"](older / template.key("weights", template.previous))
    (without_commit / template.key("commit")).unlink()
    for root, expected in ((older, template.newest), (without_commit, template.previous)):
        run = WatchedRun()
        with caplog.at_level(logging.WARNING, "ckptkit"):
            CheckpointManager(root).restore(run)
        assert (run.applied, caplog.text) == ([expected], "")
    assert [one.name for one in CheckpointManager(without_commit).checkpoints()] == [*template.names[:3]]


def test_what_was_passed_over_is_kept_as_evidence(grown):
    """Saves and retention of the attempts after it leave the corrupt checkpoint where it is; the run goes on."""
    DAMAGE["middle-byte"](grown.path("manifest"))
    names = grow(grown.root, 10, 20, 24)
    listed = [one.name for one in CheckpointManager(grown.root).checkpoints()]
    assert grown.newest in listed
    assert listed[-1] == names[-1]
    assert grown.path("weights").exists()
    run = WatchedRun()
    CheckpointManager(grown.root).restore(run)
    assert (run.applied, run.batches) == ([names[-1]], 24)
