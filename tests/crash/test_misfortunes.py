"""What goes wrong around a run rather than in a call of its storage: a full disk, a deleted folder, a user's policy."""

import pytest
from support.runs.scenario import (
    AT_6,
    Life,
    committed,
    digest_at,
    digest_of,
    history,
    name_at,
    tree,
)

from ckptkit.checkpoint.commit import remove_data
from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import CorruptCheckpointError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.run.keep_policy import KeepLatest, KeepPolicy
from ckptkit.testing.faults import Fault
from ckptkit.testing.state import NumpyRun


@pytest.fixture
def root(new_root):
    return new_root()


@pytest.fixture
def life(root):
    history(root)
    life = Life(root)
    life.restore()
    return life


def test_save_recreates_run_after_deletion(life, caplog):
    life.root.clear()
    name = life.saved_at(8)
    assert "the run, or a part of it, was deleted" in caplog.text
    assert committed(life.root) == [name]
    assert digest_of(life.root, name) == digest_at(8)
    again = Life(life.root)
    assert again.restore().checkpoint == name
    assert again.run.digest() == digest_at(8)


def test_run_deletion_during_save_prevents_commit(life):
    """There is no commit without its data; the next save is whole."""
    root = life.root
    deleted = life.storage.inject(Fault(root.clear, operations={"write"}, key="*/manifest.json", when="before"))
    assert isinstance(life.save_at(8).exception(), StorageError)
    assert deleted.fired == 1
    assert committed(root) == []
    assert life.saved_at(8) == name_at(2, 8, 2)
    assert digest_of(root, name_at(2, 8, 2)) == digest_at(8)


class Raising(KeepPolicy):
    def keeps(self, checkpoints):
        raise RuntimeError("my policy")


def test_a_policy_that_raises_fails_no_save(root, caplog):
    run = NumpyRun()
    with CheckpointManager(
        root.storage(), save=SaveEvery(micro_steps=1), keep=Raising(), saving=Saving(when_busy="wait")
    ) as manager:
        manager.restore(run)
        for _ in range(6):
            run.train_step()
            manager.step(run)
    assert len(committed(root)) == 6
    assert "older ones could not be removed" in caplog.text


def test_data_below_a_commit_is_never_removed(root, life):
    before = tree(root)
    name = committed(root)[0]
    with pytest.raises(ValueError, match=f"{name} is not void"):
        remove_data(root.storage(), CheckpointName.parse(name))
    assert tree(root) == before


class Refusing(NumpyRun):
    def begin(self, root):
        raise ValueError("not a fresh one")


def test_a_state_that_may_not_begin_fences_nobody(root):
    with pytest.raises(ValueError, match="not a fresh one"):
        CheckpointManager(root.storage()).restore(Refusing())
    assert tree(root) == {}


class Doubting(NumpyRun):
    """Finds the newest checkpoint senseless when it is applied."""

    def apply(self, contents):
        if contents.checkpoint == AT_6:
            raise CorruptCheckpointError("makes no sense")
        super().apply(contents)


def test_contents_that_make_no_sense_are_passed_over(root, caplog):
    history(root)
    run = Doubting()
    point = CheckpointManager(root.storage(), keep=KeepLatest(2)).restore(run)
    assert point.checkpoint == committed(root)[-2]
    assert f"passed over {AT_6}: makes no sense" in caplog.text
