"""What the suites of this folder do with a run: begin lives, lose parts of it, and hold that a process is stopped."""

from contextlib import suppress

import pytest
from support.runs.roots import Place, Tree, root_at
from support.runs.scenario import Life, committed, tree

from ckptkit.errors import StaleAttemptError
from ckptkit.testing.faults import Fault, Killed


def started(root: Place, *batches: int, **options) -> Life:
    """A life that has begun, and has saved at ``batches``."""
    life = Life(root, **options)
    life.restore()
    for at in batches:
        life.saved_at(at)
    return life


def killed_saving(root: Place, batches: int, **options) -> Life:
    """A life that dies right before the COMMIT of its only save."""
    life = started(root, **options)
    life.storage.inject(Fault("kill", operations={"create"}, key="*/COMMIT"))
    assert isinstance(life.save_at(batches).exception(), Killed)
    return life


def taken_away(root: Place, folder: str = "checkpoints/") -> Tree:
    """Remove what lies in a folder, and give it."""
    away = {key: data for key, data in tree(root).items() if key.startswith(folder)}
    root_at(root).remove(*away)
    return away


def bring_back(root: Place, away: Tree) -> None:
    for key, data in away.items():
        root_at(root).put(key, data)


def frozen(root: Place) -> set[str]:
    """The attempts that have frozen shards."""
    return {key.split("/")[1] for key in tree(root) if key.startswith("frozen/")}


def assert_stopped(life: Life) -> None:
    """The process that lost the run learns so from ``step``, each time, and commits nothing."""
    before = committed(life.root)
    life.run.train_step()
    # The first step may only begin the save that finds out.
    with suppress(StaleAttemptError):
        assert isinstance(life.manager.step(life.run).exception(), StaleAttemptError)
    for _ in range(2):
        with pytest.raises(StaleAttemptError, match="took"):
            life.manager.step(life.run)
    assert committed(life.root) == before
