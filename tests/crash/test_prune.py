"""`ckptkit prune`: dies at every storage call, and works beside jobs that start and save at every storage call.

What may never happen: that a start takes another checkpoint than before, or that a job loses what it began with.
"""

import contextlib
import itertools

import pytest
from support.runs.grown import train
from support.runs.roots import copied, root_at
from support.runs.scenario import (
    Life,
    attempts,
    check_new_start,
    check_void_before_delete,
    committed,
    corrupt,
    folders,
    history,
    name_at,
    tree,
)

from ckptkit.errors import CheckpointNotFoundError, StaleAttemptError, StorageError
from ckptkit.run.keep_policy import KeepBest, KeepEvery, KeepLatest
from ckptkit.testing.faults import DIVISIBLE, MUTATING, Fault, FaultyStorage, Killed
from ckptkit.tools.prune import Rule, plan_prune, prune

from .lives import started

RULES = (Rule("latest:2", KeepLatest(2)),)
TOKEN = "e" * 32
NEWEST, SECOND = name_at(2, 12), name_at(2, 10)
LATER = {"on the lineage": [name_at(1, 2), name_at(1, 4), name_at(1, 6), name_at(2, 8)], "off": [name_at(1, 7)]}
ALL = sorted([*LATER["on the lineage"], *LATER["off"], SECOND, NEWEST])


def two_attempts(root):
    """Attempt 1 committed at 2, 4, 6 and 7; attempt 2 began again at 6, and committed at 8, 10 and 12."""
    started(root, 2, 4, 6, 7, keep=KeepLatest(100))
    life = Life(root, keep=KeepLatest(100))
    life.restore(name_at(1, 6))
    for batches in (8, 10, 12):
        life.saved_at(batches)
    assert committed(root) == ALL


def calls_of_prune(root):
    pruned(root, storage=(storage := FaultyStorage(root.storage())))
    return storage.calls


def places(calls):
    """Numbers of the calls at which something is to happen: those beside which something changes, and some others."""
    changing = {number for number, call in enumerate(calls, 1) if call.operation in MUTATING}
    return [number for number in range(1, len(calls) + 1) if {number - 1, number} & changing or number % 6 == 1]


@pytest.fixture(scope="module")
def kind():
    """A prune does nothing that depends on the kind of storage."""
    return "local"


def why(root, *rules, branches=False):
    """What goes, and why the others stay."""
    plan = planned(root, rules, branches)
    goes = [str(one.name) for one in plan.decisions if one.goes]
    return goes, {str(one.name): one.why for one in plan.decisions if not one.goes}


def planned(root, rules=RULES, branches=True, storage=None):
    return plan_prune(storage or root_at(root).storage(), rules, branches=branches)


def pruned(root, rules=RULES, branches=True, storage=None, plan=None):
    storage = storage or root_at(root).storage()
    plan = plan or planned(root, rules, branches)
    return prune(storage, plan, token=TOKEN)


@pytest.fixture
def root(made):
    return made(two_attempts)


def test_prune_removes_only_what_was_planned(root):
    before = tree(root)
    plan = planned(root)
    assert tree(root) == before  # a plan only reads
    done = pruned(root, plan=plan)
    assert done.removed == sorted([*LATER["on the lineage"], *LATER["off"]])
    after = tree(root)
    left = {key for key in before if NEWEST in key or SECOND in key}
    left |= {key for key in before if key.startswith(("attempts/", "events/", "frozen/a000002", "run.json"))}
    assert after == {key: before[key] for key in left}
    assert plan.freed_bytes == sum(len(data) for key, data in before.items() if key not in left)
    check_new_start(root, latest=NEWEST)


def test_what_a_rule_drops_after_the_plan_stays(root):
    plan = planned(root)
    life = Life(root, keep=KeepLatest(100))
    life.restore()
    assert planned(root).frozen == {}  # it may be uploading the checkpoint that it began with
    newer = [life.saved_at(14), life.saved_at(16)]
    assert planned(root).frozen.keys() == {1, 2}
    assert pruned(root, plan=plan).removed == sorted([*LATER["on the lineage"], *LATER["off"]])
    assert committed(root) == [SECOND, NEWEST, *newer]


def test_rules_say_which_of_them_keeps(root):
    goes, stays = why(root, Rule("latest:3", KeepLatest(3)), Rule("every:1", KeepEvery(optimizer_steps=1)))
    assert goes == [name_at(1, 2), name_at(1, 6)]
    assert stays == {
        name_at(1, 4): "--keep every:1",
        name_at(1, 7): "off the lineage; --branches removes it",
        name_at(2, 8): "--keep latest:3, every:1",
        SECOND: "one of the two newest",
        NEWEST: "the latest",
    }
    goes, stays = why(root, branches=True)  # alone
    assert goes == LATER["off"]
    assert stays[name_at(1, 2)] == "no --keep was given"


def test_best_and_unreadable_metrics_are_kept(made):
    root = made(None)
    life = Life(root, keep=KeepLatest(100))
    life.restore()
    for batches, accuracy in ((2, 0.9), (4, 0.5), (6, 0.7), (8, 0.1), (9, 0.2)):
        train(life.run, batches)
        life.manager.save(life.run, metrics={"accuracy": accuracy}).result()
    best = Rule("best:1:accuracy:max", KeepBest(1, "accuracy", "max"))
    goes, stays = why(root, best)
    assert goes == [name_at(1, 4), name_at(1, 6)]
    assert stays[name_at(1, 2)] == "--keep best:1:accuracy:max"
    corrupt(root, name_at(1, 4), "manifest.json")
    goes, stays = why(root, best)
    assert goes == [name_at(1, 6)]
    assert stays[name_at(1, 4)] == "its metrics cannot be read"


def test_corrupt_newest_does_not_count_in_retention(root):
    corrupt(root, NEWEST, "rank-00000/weights-000.safetensors", "missing")
    corrupt(root, name_at(1, 2), "COMMIT")
    goes, stays = why(root, *RULES)
    assert stays[NEWEST] == "newer than the two newest that can be opened"
    assert (stays[SECOND], stays[name_at(2, 8)]) == ("the latest", "one of the two newest")
    assert goes == [name_at(1, 4), name_at(1, 6)]
    assert stays[name_at(1, 2)] == "its COMMIT cannot be read"
    assert any(NEWEST in one for one in planned(root).problems)
    pruned(root)
    assert name_at(1, 2) in committed(root)
    assert any(key.startswith("frozen/a000001") for key in tree(root))


def faults_of(calls):
    """Each moment of each call that has it, in words; one of an error and a kill, in turn."""
    actions = itertools.cycle(("error", "kill"))
    for number in places(calls):
        call = calls[number - 1]
        moments = [("before", True), ("during", call.operation in DIVISIBLE), ("after", call.operation in MUTATING)]
        for when in [when for when, exists in moments if exists]:
            action = next(actions)
            yield number, when, action, f"{action} {when} {number}: {call.operation} {call.keys[:1]}"


def test_interrupted_prune_loses_nothing_and_second_finishes(made):
    clean = made(two_attempts)
    calls = calls_of_prune(clean)
    finished = tree(clean)
    assert len(calls) > 20
    tried = set()
    for number, when, action, words in faults_of(calls):
        root = made(two_attempts)
        faulty = FaultyStorage(root.storage(), [fault := Fault(action, nth=number, when=when)])
        with contextlib.suppress(StorageError, Killed):  # where one thing cannot be removed, the others are
            pruned(root, storage=faulty, plan=planned(root))
        assert fault.fired == 1, words
        left = tree(root)
        state = folders(left)
        assert {SECOND, NEWEST} <= set(state.committed), words
        if str(sorted(left)) in tried:
            continue  # as another fault has left it
        tried.add(str(sorted(left)))
        second = FaultyStorage(root.storage())
        pruned(root, storage=second)
        # The removal of a whole checkpoint needs no void; a second prune leaves void markers, as a sweep does.
        whole = tuple(f"checkpoints/{name}/" for name in state.committed)
        calls = [call for call in second.calls if call.operation != "delete" or not call.keys[0].startswith(whole)]
        check_void_before_delete(calls, state.void)
        assert {key: data for key, data in tree(root).items() if b'"void_by"' not in data} == finished, words
        assert folders(tree(root)).uncommitted == [], words
        root.clear()
        check_new_start(copied(left, root), latest=NEWEST)
    assert len(tried) > 8


@pytest.mark.parametrize("checkpoint", [name_at(1, 4), "latest"])
def test_start_at_any_prune_call_keeps_its_parent(made, checkpoint):
    """Either it is refused what is going, or it has it, and the prune gives way."""
    outcomes = set()
    for number in places(calls_of_prune(made(two_attempts))):
        root = made(two_attempts)
        job, began = Life(root), []

        def start(job=job, began=began):
            try:
                began.append(job.restore(checkpoint, rewind=True).checkpoint)
            except CheckpointNotFoundError:
                began.append(None)

        fault = Fault(start, nth=number)
        gave_way = False
        try:
            pruned(root, storage=FaultyStorage(root.storage(), [fault]))
        except StaleAttemptError:
            gave_way = True
        assert fault.fired == 1
        outcomes.add((began[0], gave_way))
        if began[0] is not None:
            assert began[0] in committed(root)
            own = max(attempts(tree(root)))
            assert job.saved_at(job.run.batches + 1).startswith(f"a{own:06d}-")
        check_new_start(root, latest=_newest(root))
    if checkpoint == "latest":
        assert outcomes == {(NEWEST, False), (NEWEST, True)}
    else:
        assert outcomes == {(checkpoint, False), (checkpoint, True), (None, False)}


def _newest(root):
    """The newest attempt's highest commit, or what it began with."""
    files = tree(root)
    for number, document in sorted(attempts(files).items(), reverse=True):
        own = [name for name in folders(files).committed if name.startswith(f"a{number:06d}-")]
        if own:
            return own[-1]
        if document["parent"] in folders(files).committed:
            return document["parent"]
    raise AssertionError("the run has nothing")


def test_start_between_plan_and_delete_restores_checkpoints(root):
    """It has seen its parent committed, and then the COMMIT goes: the one moment that no check of its own covers."""
    job = Life(root)
    start = Fault(lambda: job.restore(name_at(1, 4), rewind=True), operations={"delete"})
    with pytest.raises(StaleAttemptError, match=r"attempts/000003.json.*were restored.*Run the same command again"):
        pruned(root, storage=FaultyStorage(root.storage(), [start]))
    assert committed(root) == ALL
    assert job.saved_at(5) == name_at(3, 5)
    goes, stays = why(root, *RULES, branches=True)
    assert stays[name_at(1, 4)] == "one of the two newest"
    assert NEWEST in goes  # by now off the lineage
    assert job.saved_at(6) == name_at(3, 6)
    check_new_start(root, latest=name_at(3, 6))


def test_outdated_plan_spares_what_must_now_stay(root):
    """Between the question and the answer, the newest checkpoints were lost."""
    plan = planned(root)
    root.remove(*[key for key in tree(root) if SECOND in key or NEWEST in key])
    done = pruned(root, plan=plan)
    assert done.spared == [name_at(1, 6), name_at(2, 8)]
    assert committed(root) == [name_at(1, 6), name_at(2, 8)]
    check_new_start(root, latest=name_at(2, 8))


def test_unreadable_attempts_keep_what_they_may_need(made):
    for broken, expected in ([1], [name_at(2, 8)]), ([3], []), ([1, 3], []):
        root = made(two_attempts)
        for number in broken:
            root.put(f"attempts/{number:06}.json", b"{}")
        goes, stays = why(root, *RULES, branches=True)
        assert goes == expected, broken
        if 3 in broken:
            assert stays[name_at(2, 8)] == "attempts/000003.json cannot be read, and may need it"
        else:
            assert all("attempts/000001.json cannot be read" in stays[one] for one in ALL if one.startswith("a000001"))
    root = made(None)
    assert planned(root).decisions == ()
    history(root)
    assert why(root, Rule("latest:1", KeepLatest(1)), branches=True)[0] == []  # the first ones all stay
