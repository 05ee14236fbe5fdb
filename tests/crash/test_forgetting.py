"""What a run forgets of its starts, so that it does not grow with them, and what it has to keep."""

import contextlib
import itertools

from support.options import grouped
from support.runs.dict_storage import Counted, DictStorage
from support.runs.grown import ON_REQUEST, WatchedRun
from support.runs.long_run import save
from support.runs.scenario import (
    AT_6,
    Life,
    attempts,
    batches_of,
    check_new_start,
    committed,
    folders,
    history,
    name_at,
    tree,
)

from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.faults import Fault, Killed

from .lives import bring_back, killed_saving, started, taken_away


def failed(root, times, *, saving=()):
    """So many starts that commit nothing; some of them die while they save."""
    for nth in range(times):
        if nth in saving:
            killed_saving(root, batches_of(committed(root)[-1]) + 2)
        else:
            started(root)


def numbers(root):
    return sorted(attempts(tree(root)))


def tried(root, times, saving=()):
    history(root)
    failed(root, times, saving=saving)


def restarted(*, commits=True, saves=0, dies=False, mirrored=False, by_name=False):
    """Twenty starts, on one root or on two, and what a further one reads of each."""
    roots = [Counted(DictStorage()) for _ in range(1 + mirrored)]
    roots[-1].url = "dict://mirror"
    options = {"keep": KeepLatest(2), "events": saves > 0, **({"mirror": roots[1]} if mirrored else {})}

    def start(checkpoint="latest"):
        manager, run = CheckpointManager(roots[0], save=ON_REQUEST, **grouped(**options)), WatchedRun()
        manager.restore(run, checkpoint=checkpoint, rewind=checkpoint != "latest")
        manager.wait()
        return manager, run

    if commits:
        manager, run = start()
        first, _ = save(manager, run), save(manager, run)
        manager.close()
    for _ in range(20):
        manager, run = start(first if by_name else "latest")
        for _ in range(saves):
            save(manager, run)
        if saves:
            manager.close()
        if dies:
            fault = roots[0].inject(Fault("error", operations={"create"}, key="*/COMMIT", times=None))
            manager.save(run).exception()
            roots[0].clear()
            assert fault.fired
    for root in roots:
        root.reset()
    _, run = start()
    assert len(run.applied) == commits
    return roots


def test_start_reads_twenty_files_after_any_restarts():
    """Also where documents stay: of who committed, of starts sent back by name, and with void markers."""
    without_commits = [{"commits": False, "dies": True}, {"commits": False, "mirrored": True}]
    for row in ({}, {"saves": 1}, {"saves": 3}, {"by_name": True}, {"dies": True, "mirrored": True}, *without_commits):
        roots = restarted(**row)
        for root in roots:
            assert len(set(root.keys("read"))) <= 20, row
            assert len(root.keys("read")) <= 30, row
            assert len(root.keys("list")) <= 21, row
        kept = [key for key in roots[0]._inner.files if not key.startswith("events/")]
        if row.keys() <= {"saves"}:
            assert len(kept) <= 2 * 8 + 6 + (20 if row else 0), row
        if "by_name" in row:  # they may have had checkpoints that were pruned
            assert sum(key.startswith("attempts/") for key in kept) > 20


def test_only_last_failed_starts_stay(root):
    tried(root, 6, saving={0, 2, 4})
    assert numbers(root) == [1, 5, 6, 7]
    assert {name[:7] for name in folders(tree(root)).void} == {"a000006"}
    check_new_start(root, latest=AT_6)


def test_voids_below_two_newer_commits_go(root):
    tried(root, 1, saving={0})  # attempt 2
    started(root, 8)
    started(root)
    assert name_at(2, 8) in folders(tree(root)).void  # of the two newest commits, one is older than it
    started(root, 10)
    started(root)
    assert folders(tree(root)).void == []
    check_new_start(root, latest=name_at(5, 10))


def test_commits_off_the_lineage_let_no_void_go(root):
    tried(root, 1, saving={0})  # attempt 2
    started(root, 8)  # attempt 3
    life = Life(root)
    life.restore(AT_6, rewind=True)
    life.saved_at(9)
    started(root)
    assert name_at(2, 8) in folders(tree(root)).void  # a start may take AT_6, which is older than it
    check_new_start(root, latest=name_at(4, 9))


def test_branch_of_failed_start_is_remembered(root):
    """A person went back, and the job died again and again."""
    history(root)
    life = Life(root)
    life.restore(name_at(1, 4), rewind=True)
    failed(root, 8)
    assert numbers(root) == [1, 2, 8, 9, 10]
    Life(root).restore(name_at(1, 4), rewind=True)  # one that is sent back by name removes no others
    assert numbers(root) == [1, 2, 8, 9, 10, 11]
    check_new_start(root, latest=name_at(1, 4))


def test_nothing_is_forgotten_while_checkpoints_are_away(root):
    """Before two later commits, nothing tells whether a first attempt had any."""
    started(root, 4)
    away = taken_away(root)
    taken_away(root, "events/")  # which would tell
    failed(root, 6)
    assert numbers(root) == [1, 2, 3, 4, 5, 6, 7]
    bring_back(root, away)
    check_new_start(root, latest=name_at(1, 4))


def test_forgetting_may_end_at_any_call(made):
    """With voids to remove, and more than one start to forget, since the sweeps before failed."""

    def grown(root):
        tried(root, 1, saving={0})
        for at in (8, 10):
            started(root, at)
        for nth in range(4):
            life = started(root, faults=[Fault("error", operations={"list"}, key="frozen")])
            if nth == 1:
                life.storage.inject(Fault("kill", operations={"create"}, key="*/COMMIT"))
                life.save_at(12)

    whole = Life(made(grown))
    calls = whole.calls_of(whole.restore)
    deletes = [index for index, call in enumerate(calls, 1) if call.operation == "delete"]
    assert len([key for index in deletes for key in calls[index - 1].keys]) >= 4
    for index, when in itertools.product(deletes, ("before", "during", "after")):
        root = made(grown)
        fault = Fault("error" if when == "before" else "kill", nth=index, when=when)
        with contextlib.suppress(Killed):
            Life(root, faults=[fault]).restore()
        assert fault.fired == 1
        check_new_start(root, latest=name_at(4, 10))
