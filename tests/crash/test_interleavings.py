"""Two processes on one run root, and starts on what was damaged: each interleaving by name, none by chance."""

import pytest
from support.live import LONG_SECONDS, Stall
from support.runs.grown import train
from support.runs.scenario import (
    Life,
    attempts,
    batches_of,
    check_new_start,
    committed,
    corrupt,
    digest_at,
    digest_of,
    name_at,
    tree,
)

from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import StaleAttemptError, StorageError
from ckptkit.run.keep_policy import KeepEvery
from ckptkit.testing.faults import Fault, Killed

from .lives import assert_stopped, started


@pytest.fixture
def root(new_root):
    return new_root()


def begin_paused_save(life: Life, batches: int, **where):
    """Begin a save that is held at the call that ``where`` names."""
    stall = Stall()
    fault = life.storage.inject(Fault(stall, **where))
    train(life.run, batches)
    handle = life.manager.save(life.run)
    assert stall.reached.wait(LONG_SECONDS)
    assert fault.fired == 1
    return stall, handle


EVERY_STEP = SaveEvery(micro_steps=1)


def test_commit_before_sweep_void_stays_off_lineage(root):
    zombie = started(root, 4, 6, save=EVERY_STEP)
    late = name_at(1, 8)
    stall, handle = begin_paused_save(zombie, 8, operations={"create"}, key=f"checkpoints/{late}/COMMIT")

    def land():
        stall.let_go()
        assert isinstance(handle.exception(), StaleAttemptError)
        assert late in committed(root)

    newer = Life(root, faults=[Fault(land, operations={"create"}, key=f"checkpoints/{late}/COMMIT")])
    assert newer.restore().checkpoint == name_at(1, 6)
    assert committed(root) == [name_at(1, 4), name_at(1, 6), late]
    assert_stopped(zombie)
    for batches in (7, 9, 10):
        newer.saved_at(batches)
    # Retention never touches what is off the lineage, and a start never prefers it for being further.
    assert committed(root) == [late, name_at(2, 9), name_at(2, 10)]
    assert digest_of(root, late) == digest_at(8)
    check_new_start(root, latest=name_at(2, 10))


def test_takeover_is_named_before_a_failing_write(new_root):
    """The start that took over has swept the folder that is written, so that the write fails."""
    for where in ({"operations": {"write"}}, {"operations": {"create"}, "key": "*/COMMIT"}):
        root = new_root()
        zombie = started(root, 4, 6, save=EVERY_STEP)
        newer = []

        def swept(root=root, newer=newer):
            newer.append(started(root))
            raise StorageError("the folder is gone")

        fault = zombie.storage.inject(Fault(swept, **where))
        assert isinstance(zombie.save_at(8).exception(), StaleAttemptError), where
        assert fault.fired == 1
        assert_stopped(zombie)
        assert newer[0].saved_at(8) == name_at(2, 8)
        check_new_start(root, latest=name_at(2, 8))


def test_save_is_reported_after_a_fence_check(root):
    """The fence check that follows COMMIT fails once, and a start that took over before COMMIT does not know of it."""
    zombie = started(root, 4, 6)
    late = name_at(1, 8)
    commit = {"operations": {"create"}, "key": f"checkpoints/{late}/COMMIT"}
    stall, handle = begin_paused_save(zombie, 8, **commit)
    errors = []

    def land():
        zombie.storage.inject(Fault("error", operations={"list"}, key="attempts"))
        stall.let_go()
        errors.append(handle.exception())

    newer = Life(root, faults=[Fault(land, **commit)])
    assert newer.restore().checkpoint == name_at(1, 6)
    assert late in committed(root)
    assert errors != [None]
    with pytest.raises(StaleAttemptError):
        zombie.manager.save_final(zombie.run)
    assert newer.saved_at(8) == name_at(2, 8)
    check_new_start(root, latest=name_at(2, 8))


def test_first_commit_before_fresh_sweep_is_found(root):
    """It keeps its frozen shard, and the fresh attempt does not hide it."""
    zombie = started(root, save=EVERY_STEP)
    late = name_at(1, 2)
    stall, handle = begin_paused_save(zombie, 2, operations={"create"}, key=f"checkpoints/{late}/COMMIT")

    def land():
        stall.let_go()
        handle.exception()

    newer = Life(root, faults=[Fault(land, operations={"create"}, key=f"checkpoints/{late}/COMMIT")])
    assert newer.restore().checkpoint is None
    assert committed(root) == [late]
    assert any(key.startswith("frozen/a000001/") for key in tree(root))
    # The fresh attempt has committed nothing; so it hides nothing.
    check_new_start(root, latest=late)


def test_next_sweep_removes_zombie_data_in_void(root):
    zombie = started(root, 4, 6)
    folder = f"checkpoints/{name_at(1, 7)}"
    stall, handle = begin_paused_save(zombie, 7, operations={"write"}, key=f"{folder}/*", nth=2)
    started(root)
    assert [key for key in tree(root) if key.startswith(folder)] == [f"{folder}/COMMIT"]
    stall.let_go()
    assert isinstance(handle.exception(), StaleAttemptError)
    assert len([key for key in tree(root) if key.startswith(folder)]) > 1
    check_new_start(root, latest=name_at(1, 6))
    assert [key for key in tree(root) if key.startswith(folder)] == [f"{folder}/COMMIT"]


def test_takeover_during_retention_spares_newer_attempt(new_root):
    probe = started(new_root(), 2, 4, 6)
    calls = probe.calls_of(lambda: probe.saved_at(8))
    assert any(call.operation == "delete" and call.keys[0].endswith("COMMIT") for call in calls)
    for nth, call in enumerate(calls, 1):
        root = new_root()
        old = started(root, 2, 4, 6, save=EVERY_STEP, on_save_error="warn" if nth % 2 else "raise")
        stall, handle = begin_paused_save(old, 8, nth=nth)
        newer = started(root, 9, 10)
        own = {key: data for key, data in tree(root).items() if "00002" in key}
        stall.let_go()
        handle.exception()
        after = tree(root)
        assert own.items() <= after.items(), call
        assert_stopped(old)
        assert newer.saved_at(11) == name_at(2, 11)
        check_new_start(root, latest=name_at(2, 11))


# Two starts


def test_last_of_two_fresh_starts_wins(new_root):
    """This holds at whichever call the two meet, and whether the rival has committed by then or not."""
    probe = Life(new_root())
    last = set()
    for nth, call in enumerate(probe.calls_of(probe.restore), 1):
        root = new_root()
        rivals = []
        commits = (2,) if nth % 2 else ()
        meet = lambda root=root, rivals=rivals, commits=commits: rivals.append(started(root, *commits, save=EVERY_STEP))  # noqa: E731
        fault = Fault(meet, nth=nth)
        first = Life(root, faults=[fault], save=EVERY_STEP)
        try:
            first.restore()
            alive = [first]
        except StaleAttemptError:
            alive = []
        (rival,) = rivals
        assert fault.fired == 1
        documents = attempts(tree(root))
        last_token = documents[max(documents)]["token"]
        before = committed(root)
        outcomes = {id(life): life.save_at(3).exception() for life in [*alive, rival]}
        winners = [life for life in [*alive, rival] if outcomes[id(life)] is None]
        assert len(winners) == 1, call
        (new,) = set(committed(root)) - set(before)
        assert documents[int(new[1:7])]["token"] == last_token
        for loser in {first, rival} - set(winners):
            if loser in alive or loser is rival:
                assert_stopped(loser)
        last.add(winners[0] is first)
        assert digest_of(root, new) == digest_at(3)
        check_new_start(root, latest=new)
    assert last == {True, False}  # both ways were met


def test_start_opens_commit_that_lands_after_choice(root):
    """It lands before the attempt is created, whose first number is given up."""
    running = started(root, 4, 6, save=EVERY_STEP)
    fault = Fault(lambda: running.saved_at(8), operations={"create"}, key="attempts/*")
    late = Life(root, faults=[fault])
    assert late.restore().checkpoint == name_at(1, 8)
    assert fault.fired == 1
    assert late.run.digest() == digest_at(8)
    # The first number was given up with the older parent; its document stays and harms nobody.
    parents = {number: document["parent"] for number, document in attempts(tree(root)).items()}
    assert parents == {1: None, 2: name_at(1, 6), 3: name_at(1, 8)}
    assert_stopped(running)
    assert late.saved_at(9) == name_at(3, 9)
    check_new_start(root, latest=name_at(3, 9))


PRUNED_AT = {
    "before create": {"operations": {"create"}, "key": "attempts/*"},
    "after create": {"operations": {"list"}, "key": "attempts", "nth": 2},
    "manifest": {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 6)}/manifest.json"},
    "rank file": {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 6)}/rank-00000.json"},
    "shard sizes": {"operations": {"walk"}, "key": f"checkpoints/{name_at(1, 6)}/*"},
    "first shard": {"operations": {"read_into"}, "key": f"checkpoints/{name_at(1, 6)}/*"},
    "second shard": {"operations": {"read_into"}, "key": f"checkpoints/{name_at(1, 6)}/*", "nth": 2},
    "made durable": {"operations": {"create"}, "key": f"checkpoints/{name_at(1, 6)}/COMMIT"},
}


def test_checkpoint_pruned_while_opened_restarts_choice(kind, new_root):
    for when, where in PRUNED_AT.items():
        if kind != "local" and when == "made durable":
            continue  # a local file system alone is asked for the COMMIT once more, so that it survives a power loss
        root = new_root()
        running = started(root, 4, 6, save=EVERY_STEP)

        def prune(root=root, running=running, when=when):
            if when == "after create":  # the running job passed its fence check before the new attempt was there
                root.remove(*[key for key in tree(root) if name_at(1, 6) in key])
            else:
                running.saved_at(8)
                running.saved_at(10)

        expected = name_at(1, 4 if when == "after create" else 10)
        fault = Fault(prune, **where)
        late = Life(root, faults=[fault])
        assert late.restore().checkpoint == expected, when
        assert fault.fired == 1, when
        assert name_at(1, 6) not in committed(root)
        assert late.run.digest() == digest_at(batches_of(expected))
        assert attempts(tree(root))[max(attempts(tree(root)))]["passed_over"] == [], when
        assert_stopped(running)
        check_new_start(root, latest=expected)


def test_start_that_is_always_overtaken_gives_up(root, monkeypatch):
    monkeypatch.setattr("ckptkit.run.attempt._ROUNDS", 3)
    started(root, 4, 6)
    fault = Fault(lambda: started(root), operations={"create"}, key="attempts/*", times=None)
    with pytest.raises(StaleAttemptError, match="3 times in a row another process changed the run"):
        Life(root, faults=[fault]).restore()
    assert fault.fired == 3


def test_crash_during_start_retry_keeps_newest_parent(root):
    """The document of the dead start names an older parent; the next start does not go back to it."""
    # Its document names a parent that the running job removed meanwhile; 4 is kept for good, 9 is the newest.
    running = started(root, 4, 6, keep=KeepEvery(optimizer_steps=1))

    def go_on():
        running.saved_at(7)
        running.saved_at(9)

    late = Life(
        root,
        faults=[
            Fault(go_on, operations={"create"}, key="attempts/*"),
            Fault("kill", operations={"create"}, key="attempts/*", nth=2),
        ],
    )
    with pytest.raises(Killed):
        late.restore()
    assert attempts(tree(root))[2]["parent"] == name_at(1, 6)
    assert committed(root) == [name_at(1, 4), name_at(1, 7), name_at(1, 9)]
    check_new_start(root, latest=name_at(1, 9))


def test_start_overtaken_before_sweep_deletes_nothing(new_root):
    """At the fence after the create, at the second look, and at the fence before the sweep."""
    for nth in (2, 3, 4):
        root = new_root()
        dead = started(root, 4)
        dead.storage.inject(Fault("kill", operations={"create"}, key="*/COMMIT"))
        assert isinstance(dead.save_at(6).exception(), Killed)
        newer = Life(root)
        fault = Fault(newer.restore, operations={"list"}, key="attempts", nth=nth)
        late = Life(root, faults=[fault])
        with pytest.raises(StaleAttemptError, match="attempt 3"):
            late.restore()
        assert fault.fired == 1
        created = [key for call in late.storage.calls if call.operation == "create" for key in call.keys]
        # On a disk the COMMIT of its parent is asked for, so that it is durable; nothing is voided.
        asked = [] if late.storage.is_remote else [f"checkpoints/{name_at(1, 4)}/COMMIT"]
        assert created == [*asked, "attempts/000002.json"]
        assert not [call for call in late.storage.calls if call.operation == "delete"]
        assert newer.saved_at(6) == name_at(3, 6)


def test_unparsable_commit_keeps_data_and_frozen_shards(root):
    started(root, 4, 6)
    corrupt(root, name_at(1, 6), "COMMIT", "cut")
    kept = {key: data for key, data in tree(root).items() if name_at(1, 6) in key or key.startswith("frozen/a000001")}
    assert len(kept) > 4
    life = started(root, 8, 10, 11)
    assert kept.items() <= tree(root).items()
    assert name_at(1, 4) not in committed(root)
    assert life.manager.latest().name == name_at(2, 11)
