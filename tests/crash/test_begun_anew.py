"""A run that somebody removed or moved and began anew while its old job lives: attempts have the same numbers again."""

import pytest
from support.runs.scenario import Life, attempts, check_new_start, committed, digest_at, digest_of, name_at, tree

from ckptkit.errors import StaleAttemptError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.catalog import latest_checkpoint
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.run.resolve import open_wanted
from ckptkit.testing.faults import Fault
from ckptkit.tools.prune import Rule, plan_prune

from .lives import started


@pytest.fixture
def root(new_root):
    return new_root()


def assert_stopped(life, batches):
    before = tree(life.root)
    assert isinstance(life.save_at(batches).exception(), StaleAttemptError)
    assert tree(life.root) == before


def test_old_job_stops_where_run_began_anew(new_root):
    """Whichever number it has: with a higher one, its document put back would take the new run over."""
    for starts in (1, 2):
        root = new_root()
        for at in range(1, starts):
            started(root, 4 * at)
        old = started(root, 4 * starts)
        root.clear()
        new = started(root, 2, 3)
        assert_stopped(old, 4 * starts + 4)
        assert sorted(attempts(tree(root))) == [1]
        assert new.saved_at(5)
        assert committed(root) == [name_at(1, 3), name_at(1, 5)]
        check_new_start(root, latest=name_at(1, 5))


def test_committed_moment_hides_no_new_owner(root):
    """Nothing is left to write, and yet this process does not own the run any more."""
    old = started(root, 8)
    root.clear()
    started(root, 2, 3)
    before = tree(root)
    for save in (lambda *both: both[0].save(both[1]).result(), CheckpointManager.save_final) * 2:
        with pytest.raises(StaleAttemptError, match="a new run began"):
            save(old.manager, old.run)
    with pytest.raises(StaleAttemptError):
        old.manager.close()
    assert tree(root) == before


def begun_anew(root):
    """A new job, and the commit that an old one made in its run: it was held at its last call while that began."""
    new = []

    def begin_anew():
        root.clear()
        new.append(started(root, 2, 3))

    old = started(root, 40)
    begun = old.storage.inject(Fault(begin_anew, operations={"create"}, key="*/COMMIT"))
    old.save_at(44).exception()
    assert begun.fired == 1
    return new[0], name_at(1, 44)


def test_what_another_process_committed_is_neither_counted_taken_nor_pruned(root, caplog):
    life, foreign = begun_anew(root)
    assert committed(root) == [name_at(1, 2), name_at(1, 3), foreign]
    for at in (5, 6):
        life.saved_at(at)
    assert committed(root) == [name_at(1, 5), name_at(1, 6), foreign]
    assert [digest_of(root, name_at(1, at)) for at in (5, 6)] == [digest_at(5), digest_at(6)]
    storage = root.storage()
    assert latest_checkpoint(storage).name == str(open_wanted(storage).name) == name_at(1, 6)
    plan = plan_prune(storage, [Rule("latest=1", KeepLatest(1))], branches=True)
    why = {str(one.name): one.why for one in plan.decisions}
    assert why == {
        name_at(1, 5): "one of the two newest",
        name_at(1, 6): "the latest",
        foreign: "its COMMIT has another token",
    }
    assert plan.doomed == ()
    assert foreign in "".join(plan.problems)
    life = Life(root)
    assert life.restore().checkpoint == name_at(1, 6)
    assert life.run.digest() == digest_at(6)
    assert f"passed over {foreign}" in caplog.text
    assert attempts(tree(root))[2]["passed_over"][0]["checkpoint"] == foreign


def test_put_back_that_comes_late_ends_process(root):
    old = started(root, 4)
    root.clear()
    late = old.storage.inject(Fault(lambda: started(root), operations={"create"}, key="attempts/000001.json"))
    assert isinstance(old.save_at(8).exception(), StaleAttemptError)
    assert late.fired == 1
    assert committed(root) == []
    check_new_start(root, latest=None)


def test_late_start_gives_the_number_back(root):
    """As on a storage without conditions: it stood still between its lease and its put, and the other job saved."""
    started(root, 2)
    number = "attempts/000002.json"
    running = []

    def meanwhile():
        running.append(started(root, 4, 6))
        root.remove(number)  # so that the put that comes late replaces it

    late = Life(root, faults=[Fault(meanwhile, operations={"create"}, key=number)])
    with pytest.raises(StaleAttemptError, match="while the start of this one was stalled"):
        late.restore()
    assert number not in tree(root)
    assert running[0].saved_at(8) == name_at(2, 8)  # its document is there again
    assert committed(root) == [name_at(2, 6), name_at(2, 8)]
    check_new_start(root, latest=name_at(2, 8))


def test_begun_anew_keeps_its_equal_frozen_shard(root):
    """The old job's first save finds the shard of the new one, which has its digest."""
    old = started(root)
    new = []

    def begin():
        root.clear()
        new.append(started(root, 2))

    begun = old.storage.inject(Fault(begin, operations={"list"}, key="frozen/a000001"))
    assert isinstance(old.save_at(4).exception(), StaleAttemptError)
    assert begun.fired == 1
    assert not [call for call in old.storage.calls if call.operation == "delete"]
    assert digest_of(root, name_at(1, 2)) == digest_at(2)
    check_new_start(root, latest=name_at(1, 2))
