"""One thing that cannot be removed, as another user's file or an object under legal hold, delays nothing else."""

from support.runs.scenario import check_new_start, committed, folders, name_at, tree

from ckptkit.run.keep_policy import KeepLatest
from ckptkit.storage import LocalStorage
from ckptkit.testing.faults import Fault, FaultyStorage, Killed
from ckptkit.tools.prune import Rule, plan_prune, prune

from .lives import started

OLDEST = name_at(1, 2)


def held(key):
    """A file that this user may not delete."""
    return Fault("error", operations={"delete"}, key=key, times=None)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if "could not be removed" in record.getMessage()]


def test_retention_goes_on_and_warns_once(tmp_path, caplog):
    for file in ("COMMIT", "manifest.json"):
        root = tmp_path / file
        caplog.clear()
        life = started(root, 2, 4, 6, 8, 10, 12, faults=[fault := held(f"*{OLDEST}/{file}")])
        stays = [OLDEST] if file == "COMMIT" else []
        assert committed(root) == [*stays, name_at(1, 10), name_at(1, 12)]
        assert fault.fired == (4 if file == "COMMIT" else 1)
        (warning,) = warnings(caplog)
        assert warning.startswith(f"{OLDEST} could not be removed from {root}: ")
        assert "\n" not in warning
        assert not [record for record in caplog.records if record.exc_info]
        life.storage.clear()
        life.saved_at(14)
        assert committed(root) == [name_at(1, 12), name_at(1, 14)]
        check_new_start(root, latest=name_at(1, 14))


def test_storage_that_does_not_answer_ends_retention(root, caplog):
    """It is not asked for one checkpoint after the other, each with all its retries."""
    started(root, 2, 4, 6, 8, 10, keep=KeepLatest(100))
    life = started(root)
    held_list = Fault("error", operations={"list"}, key="attempts")
    life.storage.inject(Fault(lambda: life.storage.inject(held_list), operations={"delete"}, key="*/COMMIT"))
    fault = life.storage.inject(held("*/COMMIT"))
    life.saved_at(12)
    assert held_list.fired == 1
    assert fault.fired == 1
    assert "older ones could not be removed: injected" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


def test_sweep_goes_on(tmp_path, caplog):
    """Neither can be voided or emptied of the first of two folders; the second one is."""
    first, second = name_at(1, 8), name_at(2, 9)
    for operation in ("create", "delete"):
        root = tmp_path / operation
        for batches in (4, 7):
            walk = Fault("error", operations={"walk"}, key="checkpoints/")
            life = started(root, batches, keep=KeepLatest(100), faults=[walk])
            life.storage.inject(Fault("kill", operations={"write"}, key="*/manifest.json"))
            assert isinstance(life.save_at(8 if batches == 4 else 9).exception(), Killed)
        caplog.clear()
        life = started(root, faults=[fault := Fault("error", operations={operation}, key=f"*{first}/*", times=None)])
        assert fault.fired
        assert [key for key in tree(root) if second in key] == [f"checkpoints/{second}/COMMIT"]
        assert len([key for key in tree(root) if first in key]) > 1
        (warning,) = warnings(caplog)
        assert first in warning
        check_new_start(root, latest=name_at(2, 7))
        assert folders(tree(root)).uncommitted == []


def test_prune_goes_on(tmp_path, caplog):
    rules = (Rule("latest:2", KeepLatest(2)),)
    for file in ("COMMIT", "manifest.json"):
        root = tmp_path / file
        started(root, 2, 4, 6, 8, 10, keep=KeepLatest(100))
        names = committed(root)
        caplog.clear()
        storage = FaultyStorage(LocalStorage(root), [fault := held(f"*{OLDEST}/{file}")])
        done = prune(storage, plan_prune(storage, rules, branches=False), token="e" * 32)
        assert fault.fired
        assert (done.removed, done.stuck) == (names[1:3], [OLDEST])
        assert committed(root) == [*([OLDEST] if file == "COMMIT" else []), *names[3:]]
        assert len(warnings(caplog)) == 1
        storage.clear()
        later = prune(storage, plan_prune(storage, rules, branches=False), token="e" * 32)
        rest = ([OLDEST], []) if file == "COMMIT" else ([], [OLDEST])
        assert (later.removed, later.emptied, later.stuck) == (*rest, [])
        check_new_start(root, latest=names[-1])
