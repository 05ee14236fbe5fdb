"""Starts while a part of the run is away: on a disk that is not mounted, or removed by a lifecycle rule."""

import pytest
from support.runs.scenario import Life, check_new_start, digest_at, digest_of, folders, name_at, tree

from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.run.catalog import list_rows
from ckptkit.run.resolve import open_wanted
from ckptkit.testing.faults import Fault
from ckptkit.tools.verify import audit
from ckptkit.tools.watch import CheckpointWatch

from .lives import bring_back, frozen, started, taken_away


@pytest.fixture
def root(new_root):
    return new_root()


def test_emptied_checkpoints_are_no_fresh_start(root):
    started(root, 2, 4)
    started(root, 6, 8)
    away = taken_away(root)
    before = tree(root)
    with pytest.raises(CorruptCheckpointError, match=r"attempts/000002\.json continues from .* holds none"):
        Life(root).restore()
    with pytest.raises(CorruptCheckpointError, match="holds none"):
        Life(root).manager.latest()
    assert "holds none" in str(list_rows(root.storage(), 9).problem)
    assert tree(root) == before
    bring_back(root, away)
    check_new_start(root, latest=name_at(2, 8))


# What a copy of a run may lack that trained while it was copied, file by file; or what a disk that is away holds.
LOST = {
    "checkpoints": lambda key: key.startswith("checkpoints/"),
    "markers": lambda key: key.endswith("/COMMIT"),
    "documents too": lambda key: key.startswith(("checkpoints/", "attempts/", "frozen/")),
    "all but events": lambda key: not key.startswith("events/"),
}


def test_events_of_lost_checkpoints_forbid_fresh_start(new_root):
    for lost, is_lost in LOST.items():
        root = new_root()
        started(root, 2, 4, 6)
        away = {key: data for key, data in tree(root).items() if is_lost(key)}
        root.remove(*away)
        before = tree(root)
        for ask in (Life(root).restore, Life(root).manager.latest, lambda root=root: open_wanted(root.storage())):
            with pytest.raises(CorruptCheckpointError, match=r"tell of \d committed checkpoints, the newest a000001-"):
                ask()
        assert "tell of" in audit(root.storage(), CheckpointWatch()).start.problem, lost
        assert tree(root) == before, lost
        bring_back(root, away)
        check_new_start(root, latest=name_at(1, 6))


def test_events_of_failed_saves_forbid_nothing(new_root):
    """A first life that committed nothing, of which only events and such a folder are left."""
    for times, left in (3, "void"), (None, "uncommitted"):
        root, fault = new_root(), Fault("error", operations={"create"}, key="*/COMMIT", times=times)
        life = Life(root, faults=[fault])
        life.restore()
        assert isinstance(life.save_at(2).exception(), StorageError)
        life.manager.close()
        assert fault.fired >= 3
        assert getattr(folders(tree(root)), left) == [name_at(1, 2)]
        assert any(b'"save_failed"' in data for key, data in tree(root).items() if key.startswith("events/"))
        assert Life(root).restore().checkpoint is None


def test_shards_of_a_first_attempt_outlive_fresh_start(root):
    """Nothing tells that it had commits, so the start is a fresh one; it deletes nothing that they would need."""
    started(root, 2, 4)
    away = taken_away(root)
    taken_away(root, "events/")
    started(root)
    assert frozen(root) == {"a000001"}
    bring_back(root, away)
    assert digest_of(root, name_at(1, 4)) == digest_at(4)
    check_new_start(root, latest=name_at(1, 4))


def test_shards_go_after_two_later_commits(root):
    started(root, 2)
    taken_away(root)
    taken_away(root, "events/")
    started(root, 3)
    started(root)
    assert frozen(root) == {"a000001", "a000002"}
    started(root, 5)
    started(root)
    assert frozen(root) == {"a000002", "a000004"}


def refused(root, message):
    """Every question is an error, and changes nothing."""
    before = tree(root)
    for ask in (Life(root).restore, Life(root).manager.latest, Life(root).manager.checkpoints):
        with pytest.raises(StorageError, match=message):
            ask()
    assert tree(root) == before


def test_link_to_missing_disk_is_an_error(tmp_path):
    disk, root = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    root.symlink_to(disk)
    started(root, 2, 4)
    started(root, 6)
    disk.rename(tmp_path / "away")
    refused(root, r"is a link to .*disk, which does not exist")
    (tmp_path / "away").rename(disk)
    run = Life(root)
    assert run.restore().checkpoint == name_at(2, 6)
    assert run.run.digest() == digest_at(6)


def test_linked_checkpoint_that_is_away_is_not_passed_over(tmp_path):
    """A person moved the newest one, or all, to a larger disk, which is mounted or not."""
    for number, part in enumerate(["checkpoints", "attempts", f"checkpoints/{name_at(1, 4)}"]):
        root, disk, away = (tmp_path / f"{name}-{number}" for name in ("run", "disk", "away"))
        started(root, 2, 4)
        (root / part).rename(disk)
        (root / part).symlink_to(disk)
        refused(root, r"is a link to .*disk.*, and links inside of a run are not followed")
        disk.rename(away)
        refused(root, r"is a link to .*disk.*, and links inside of a run are not followed")
        (root / part).unlink()
        away.rename(root / part)
        run = Life(root)
        assert run.restore().checkpoint == name_at(1, 4)
        assert run.run.digest() == digest_at(4)
