"""Two processes on one run root, and starts on what was damaged: each interleaving by name, none by chance."""

import logging
import threading
from contextlib import suppress

import pytest
from support.runs.roots import Root
from support.runs.scenario import (
    Life,
    attempts,
    batches_of,
    check_new_start,
    committed,
    corrupt,
    digest_at,
    digest_of,
    folders,
    name_at,
    tree,
)

from ckptkit.core.save_policy import SaveEvery
from ckptkit.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    ResumeError,
    SaveFailedError,
    StaleAttemptError,
    StorageError,
)
from ckptkit.run.keep_policy import KeepEvery, KeepLatest
from ckptkit.testing.faults import Fault, Killed


@pytest.fixture
def root(new_root):
    return new_root()


class Pause:
    """A fault's action that holds a process at a call until it may go on."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._go = threading.Event()

    def __call__(self) -> None:
        self._reached.set()
        assert self._go.wait(60)

    def wait_until_reached(self) -> None:
        assert self._reached.wait(60)

    def go(self) -> None:
        self._go.set()


def started(root: Root, *, saved_at=(), **options) -> Life:
    life = Life(root, **options)
    life.restore()
    for batches in saved_at:
        life.saved_at(batches)
    return life


def begin_paused_save(life: Life, batches: int, **where):
    """Begin a save that is held at the call that ``where`` names."""
    pause = Pause()
    fault = life.storage.inject(Fault(pause, **where))
    for _ in life.run.train_until(batches):
        pass
    handle = life.manager.save(life.run)
    pause.wait_until_reached()
    assert fault.fired == 1
    return pause, handle


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


def every_other(calls, kind, *, first):
    """The calls with their indexes; in a bucket, where they take long, half of them in each of a test's two cases."""
    numbered = list(enumerate(calls))
    return numbered if kind == "local" else numbered[0 if first else 1 :: 2]


EVERY_STEP = SaveEvery(micro_steps=1)


# A zombie: a process that was taken over without knowing


def test_commit_into_voided_folder_is_refused(root):
    zombie = started(root, saved_at=(4, 6), save=EVERY_STEP)
    commit_key = f"checkpoints/{name_at(1, 8)}/COMMIT"
    pause, handle = begin_paused_save(zombie, 8, operations={"create"}, key=commit_key)
    newer = started(root)
    assert folders(tree(root)).void == [name_at(1, 8)]
    pause.go()
    assert isinstance(handle.exception(), StaleAttemptError)
    assert committed(root) == [name_at(1, 4), name_at(1, 6)]
    assert_stopped(zombie)
    assert newer.saved_at(8) == name_at(2, 8)
    check_new_start(root, latest=name_at(2, 8))


def test_commit_before_sweep_void_stays_off_lineage(root):
    zombie = started(root, saved_at=(4, 6), save=EVERY_STEP)
    late = name_at(1, 8)
    pause, handle = begin_paused_save(zombie, 8, operations={"create"}, key=f"checkpoints/{late}/COMMIT")

    def land():
        pause.go()
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


@pytest.mark.parametrize("where", [{"operations": {"write"}}, {"operations": {"create"}, "key": "*/COMMIT"}])
def test_takeover_is_named_before_a_failing_write(root, where):
    """The start that took over has swept the folder that is written, so that the write fails."""
    zombie = started(root, saved_at=(4, 6), save=EVERY_STEP)
    newer = []

    def swept():
        newer.append(started(root))
        raise StorageError("the folder is gone")

    fault = zombie.storage.inject(Fault(swept, **where))
    assert isinstance(zombie.save_at(8).exception(), StaleAttemptError)
    assert fault.fired == 1
    assert_stopped(zombie)
    assert newer[0].saved_at(8) == name_at(2, 8)
    check_new_start(root, latest=name_at(2, 8))


def test_save_is_reported_after_a_fence_check(root):
    """The fence check that follows COMMIT fails once, and a start that took over before COMMIT does not know of it."""
    zombie = started(root, saved_at=(4, 6))
    late = name_at(1, 8)
    commit = {"operations": {"create"}, "key": f"checkpoints/{late}/COMMIT"}
    pause, handle = begin_paused_save(zombie, 8, **commit)
    errors = []

    def land():
        zombie.storage.inject(Fault("error", operations={"list"}, key="attempts"))
        pause.go()
        errors.append(handle.exception())

    newer = Life(root, faults=[Fault(land, **commit)])
    assert newer.restore().checkpoint == name_at(1, 6)
    assert late in committed(root)
    assert errors != [None]
    with pytest.raises(StaleAttemptError):
        zombie.manager.save_final(zombie.run)
    assert newer.saved_at(8) == name_at(2, 8)
    check_new_start(root, latest=name_at(2, 8))


@pytest.mark.parametrize(("failures", "fails"), [(1, False), (2, True)])
def test_commit_with_failed_fence_check_is_kept(root, failures, fails):
    """The save asks once more. If that fails, too, the next one finds the commit, and nothing is written again."""
    life = started(root, saved_at=(4, 6))
    landed = Fault(
        lambda: life.storage.inject(Fault("error", operations={"list"}, key="attempts", times=failures)),
        operations={"create"},
        key=f"checkpoints/{name_at(1, 8)}/COMMIT",
        when="after",
    )
    life.storage.inject(landed)
    handle = life.save_at(8)
    assert landed.fired == 1
    assert (handle.exception() is not None) == fails
    calls = life.calls_of(lambda: life.manager.save_final(life.run))
    assert not any(call.operation == "write" for call in calls)
    assert life.saved_at(8) == name_at(1, 8)
    assert committed(root)[-1] == name_at(1, 8)
    check_new_start(root, latest=name_at(1, 8))


def test_first_commit_before_fresh_sweep_is_found(root):
    """It keeps its frozen shard, and the fresh attempt does not hide it."""
    zombie = started(root, save=EVERY_STEP)
    late = name_at(1, 2)
    pause, handle = begin_paused_save(zombie, 2, operations={"create"}, key=f"checkpoints/{late}/COMMIT")

    def land():
        pause.go()
        handle.exception()

    newer = Life(root, faults=[Fault(land, operations={"create"}, key=f"checkpoints/{late}/COMMIT")])
    assert newer.restore().checkpoint is None
    assert committed(root) == [late]
    assert any(key.startswith("frozen/a000001/") for key in tree(root))
    # The fresh attempt has committed nothing; so it hides nothing.
    check_new_start(root, latest=late)


def test_next_sweep_removes_zombie_data_in_void(root):
    zombie = started(root, saved_at=(4, 6))
    folder = f"checkpoints/{name_at(1, 7)}"
    pause, handle = begin_paused_save(zombie, 7, operations={"write"}, key=f"{folder}/*", nth=2)
    started(root)
    assert [key for key in tree(root) if key.startswith(folder)] == [f"{folder}/COMMIT"]
    pause.go()
    assert isinstance(handle.exception(), StaleAttemptError)
    assert len([key for key in tree(root) if key.startswith(folder)]) > 1
    check_new_start(root, latest=name_at(1, 6))
    assert [key for key in tree(root) if key.startswith(folder)] == [f"{folder}/COMMIT"]


def test_takeover_before_second_fence_check_prevents_commit(root):
    old = started(root, saved_at=(4, 6), save=EVERY_STEP)
    pause, handle = begin_paused_save(old, 8, operations={"list"}, key="attempts", nth=2)
    newer = started(root)
    begun = len(old.storage.calls)
    pause.go()
    assert isinstance(handle.exception(), StaleAttemptError)
    assert not [call for call in old.storage.calls[begun:] if call.operation in {"create", "write", "delete"}]
    assert_stopped(old)
    assert newer.saved_at(8) == name_at(2, 8)


@pytest.mark.parametrize("on_save_error", ["warn", pytest.param("raise", marks=pytest.mark.extended)])
def test_takeover_during_retention_spares_newer_attempt(kind, new_root, on_save_error):
    """The takeover comes at each call of the older attempt's save in turn."""
    probe = started(new_root(), saved_at=(2, 4, 6))
    calls = probe.calls_of(lambda: probe.saved_at(8))
    assert any(call.operation == "delete" and call.keys[0].endswith("COMMIT") for call in calls)
    for index, call in every_other(calls, kind, first=on_save_error == "warn"):
        root = new_root()
        old = started(root, saved_at=(2, 4, 6), save=EVERY_STEP, on_save_error=on_save_error)
        pause, handle = begin_paused_save(old, 8, nth=index + 1)
        newer = started(root, saved_at=(9, 10))
        own = {key: data for key, data in tree(root).items() if "00002" in key}
        pause.go()
        handle.exception()
        after = tree(root)
        assert own.items() <= after.items(), call
        assert_stopped(old)
        assert newer.saved_at(11) == name_at(2, 11)
        check_new_start(root, latest=name_at(2, 11))


# The training thread and the writer


def test_training_during_save_does_not_change_it(root):
    life = started(root, saved_at=(4,))
    pause, handle = begin_paused_save(life, 6, operations={"write"}, key="*/weights-000.safetensors")
    for _ in life.run.train_until(9):
        pass
    pause.go()
    assert handle.result() == name_at(1, 6)
    assert digest_of(root, name_at(1, 6)) == digest_at(6)
    assert life.saved_at(10) == name_at(1, 10)
    assert digest_of(root, name_at(1, 10)) == digest_at(10)


# Two starts


@pytest.mark.parametrize("rival_commits", [False, True], ids=["rival opens", "rival opens and commits"])
def test_last_of_two_fresh_starts_wins(kind, new_root, rival_commits):
    """This holds at whichever call the two meet."""
    probe = Life(new_root())
    calls = probe.calls_of(probe.restore)
    last = set()
    for index, call in every_other(calls, kind, first=rival_commits):
        root = new_root()
        rivals = []

        def meet(root=root, rivals=rivals):
            rivals.append(started(root, saved_at=(2,) if rival_commits else (), save=EVERY_STEP))

        fault = Fault(meet, nth=index + 1)
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


def test_start_takes_next_free_attempt_number(root):
    started(root, saved_at=(4,))
    rivals = []
    fault = Fault(lambda: rivals.append(started(root, save=EVERY_STEP)), operations={"create"}, key="attempts/*")
    late = Life(root, faults=[fault])
    assert late.restore().checkpoint == name_at(1, 4)
    assert sorted(attempts(tree(root))) == [1, 2, 3]
    assert_stopped(rivals[0])
    assert late.saved_at(6) == name_at(3, 6)


def test_start_opens_commit_that_lands_after_choice(root):
    """It lands before the attempt is created, whose first number is given up."""
    running = started(root, saved_at=(4, 6), save=EVERY_STEP)
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


@pytest.mark.parametrize(
    "where",
    [
        {"operations": {"create"}, "key": "attempts/*"},
        {"operations": {"list"}, "key": "attempts", "nth": 2},
        {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 6)}/manifest.json"},
        {"operations": {"read"}, "key": f"checkpoints/{name_at(1, 6)}/rank-00000.json"},
        {"operations": {"walk"}, "key": f"checkpoints/{name_at(1, 6)}/*"},
        {"operations": {"read_into"}, "key": f"checkpoints/{name_at(1, 6)}/*"},
        {"operations": {"read_into"}, "key": f"checkpoints/{name_at(1, 6)}/*", "nth": 2},
    ],
    ids=["before create", "after create", "manifest", "rank file", "shard sizes", "first shard", "second shard"],
)
def test_checkpoint_pruned_while_opened_restarts_choice(root, where):
    running = started(root, saved_at=(4, 6), save=EVERY_STEP)
    if where.get("nth") == 2 and where["key"] == "attempts":

        def prune():  # the running job passed its fence check before the new attempt was there
            root.remove(*[key for key in tree(root) if name_at(1, 6) in key])

        expected = name_at(1, 4)
    else:

        def prune():
            running.saved_at(8)
            running.saved_at(10)

        expected = name_at(1, 10)
    fault = Fault(prune, **where)
    late = Life(root, faults=[fault])
    assert late.restore().checkpoint == expected
    assert fault.fired == 1
    assert name_at(1, 6) not in committed(root)
    assert late.run.digest() == digest_at(batches_of(expected))
    assert attempts(tree(root))[max(attempts(tree(root)))]["passed_over"] == []
    assert_stopped(running)
    check_new_start(root, latest=expected)


def test_parent_pruned_before_it_is_durable_restarts_choice(tmp_path):
    """A local file system is asked for it once more, so that it survives a power loss."""
    running = started(tmp_path, saved_at=(4, 6), save=EVERY_STEP)

    def prune():
        running.saved_at(8)
        running.saved_at(10)

    fault = Fault(prune, operations={"create"}, key=f"checkpoints/{name_at(1, 6)}/COMMIT")
    late = Life(tmp_path, faults=[fault])
    assert late.restore().checkpoint == name_at(1, 10)
    assert fault.fired == 1
    assert {document["parent"] for document in attempts(tree(tmp_path)).values()} == {None, name_at(1, 10)}


def test_start_that_is_always_overtaken_gives_up(root, monkeypatch):
    monkeypatch.setattr("ckptkit.run.attempt._ROUNDS", 3)
    started(root, saved_at=(4, 6))
    fault = Fault(lambda: started(root), operations={"create"}, key="attempts/*", times=None)
    with pytest.raises(StaleAttemptError, match="3 times in a row another process changed the run"):
        Life(root, faults=[fault]).restore()
    assert fault.fired == 3


def test_last_attempt_number_is_not_exceeded(root, monkeypatch):
    started(root, saved_at=(4,))
    monkeypatch.setattr("ckptkit.run.attempt.MAX_ATTEMPT", 1)
    before = tree(root)
    with pytest.raises(ResumeError, match=r"has attempt 1, .*; start under another root"):
        Life(root).restore()
    assert tree(root) == before


def test_crash_during_start_retry_keeps_newest_parent(root):
    """The document of the dead start names an older parent; the next start does not go back to it."""
    # Its document names a parent that the running job removed meanwhile; 4 is kept for good, 9 is the newest.
    running = started(root, saved_at=(4, 6), keep=KeepEvery(optimizer_steps=1))

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


@pytest.mark.parametrize("nth", [2, 3, 4], ids=["fence after create", "second look", "fence before the sweep"])
def test_start_overtaken_before_sweep_deletes_nothing(root, nth):
    dead = started(root, saved_at=(4,))
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


# A checkpoint chosen by name


def test_chosen_checkpoint_is_rewound_to_only_once(root):
    """The same call goes on from what was saved since, unless it says rewind."""
    started(root, saved_at=(4, 6, 8), keep=KeepLatest(3))
    chosen = name_at(1, 4)
    first = Life(root, keep=KeepLatest(3))
    assert first.restore(chosen).checkpoint == chosen
    assert first.saved_at(5) == name_at(2, 5)
    second = Life(root, keep=KeepLatest(3))
    assert second.restore(chosen).checkpoint == name_at(2, 5)
    assert second.saved_at(7) == name_at(3, 7)
    third = Life(root, keep=KeepLatest(3))
    assert third.restore(chosen).checkpoint == name_at(3, 7)
    again = Life(root, keep=KeepLatest(3))
    assert again.restore(chosen, rewind=True).checkpoint == chosen
    assert again.run.digest() == digest_at(4)
    # Requeued before its first commit: the branch holds nothing but where it began.
    assert Life(root).restore(chosen).checkpoint == chosen
    documents = attempts(tree(root))
    assert [documents[number]["branch"] for number in sorted(documents)] == [
        None,
        chosen,
        None,
        None,
        chosen,
        None,
    ]
    assert {name_at(1, 6), name_at(1, 8), name_at(2, 5), name_at(3, 7)} <= set(committed(root))


@pytest.mark.parametrize("again", ["the same call", "latest"])
@pytest.mark.parametrize("first", ["saves nothing", "is corrupt"])
def test_branch_without_usable_commit_is_not_repeated(root, first, again):
    """The attempt that went back is on no later lineage then, so the next one has to remember it."""
    started(root, saved_at=(4, 6, 8), keep=KeepLatest(3))
    chosen = name_at(1, 4)
    went_back = Life(root)
    went_back.restore(chosen)
    if first == "is corrupt":
        corrupt(root, went_back.saved_at(5))
    second = Life(root)
    assert second.restore(chosen if again == "the same call" else "latest").checkpoint == chosen
    second.saved_at(7)
    assert Life(root).restore(chosen).checkpoint == name_at(3, 7)
    assert Life(root).restore(chosen, rewind=True).checkpoint == chosen


def test_start_that_died_sets_no_commit_aside(root):
    """It had looked before that commit, and died before its second look."""
    started(root, saved_at=(4, 6), keep=KeepLatest(3))
    went_back = Life(root)
    went_back.restore(name_at(1, 4))
    late = Life(root, faults=[Fault(lambda: went_back.saved_at(5), operations={"create"}, key="attempts/*")])
    late.storage.inject(Fault("kill", operations={"create"}, key="attempts/*", when="after"))
    with pytest.raises(Killed):
        late.restore()
    check_new_start(root, latest=name_at(2, 5))


def test_branch_that_cannot_be_told_is_error(root):
    """What was committed since must not be set aside because a document on the way to it is damaged."""
    started(root, saved_at=(4, 6, 8), keep=KeepLatest(3))
    chosen = name_at(1, 4)
    for batches in (5, 7):
        life = Life(root, keep=KeepLatest(9))
        life.restore(chosen)
        life.saved_at(batches)
    root.put("attempts/000002.json", b"{}")
    with pytest.raises(CorruptCheckpointError, match=name_at(3, 7)):
        Life(root).restore(chosen)
    assert Life(root).restore().checkpoint == name_at(3, 7)
    with pytest.raises(CheckpointNotFoundError):
        Life(root).restore(name_at(1, 3))
    assert Life(root).restore(chosen, rewind=True).checkpoint == chosen


@pytest.mark.parametrize(
    "where",
    [{"operations": {"create"}, "key": "attempts/*"}, {"operations": {"list"}, "key": "attempts", "nth": 2}],
    ids=["before create", "after create"],
)
def test_chosen_checkpoint_pruned_while_opened_is_error(root, where):
    started(root, saved_at=(4, 6))
    chosen = name_at(1, 4)

    def prune():
        root.remove(*[key for key in tree(root) if chosen in key])

    late = Life(root, faults=[Fault(prune, **where)])
    with pytest.raises(CheckpointNotFoundError, match=chosen):
        late.restore(chosen)
    check_new_start(root, latest=name_at(1, 6))


def test_latest_follows_branch_not_highest_number(root):
    started(root, saved_at=(4, 6, 8), keep=KeepLatest(3))
    branch = Life(root)
    branch.restore(name_at(1, 4))
    branch.saved_at(5)
    check_new_start(root, latest=name_at(2, 5))


@pytest.mark.parametrize("chosen", [name_at(1, 5), name_at(7, 4), "latest-ish", "../" + name_at(1, 4), ""])
def test_choosing_missing_checkpoint_fences_nobody(root, chosen):
    running = started(root, saved_at=(4,))
    before = tree(root)
    with pytest.raises(CheckpointNotFoundError, match=name_at(1, 4)):
        Life(root).restore(chosen)
    assert tree(root) == before
    assert running.saved_at(6)


# Damage


def test_corrupt_latest_is_skipped_with_warning(root, caplog):
    """What was saved from the older one on is preferred afterwards."""
    started(root, saved_at=(4, 6, 8))
    bad = name_at(1, 8)
    corrupt(root, bad)
    with caplog.at_level(logging.WARNING, "ckptkit"):
        second = started(root, keep=KeepLatest(2))
    assert bad in caplog.text
    assert "weights-000.safetensors" in caplog.text
    assert [one["checkpoint"] for one in attempts(tree(root))[2]["passed_over"]] == [bad]
    assert second.run.digest() == digest_at(6)
    third = started(root)  # nothing was saved in between: the same again
    assert third.run.digest() == digest_at(6)
    assert third.saved_at(7) == name_at(3, 7)
    fourth = Life(root)
    assert fourth.restore().checkpoint == name_at(3, 7)
    assert fourth.run.digest() == digest_at(7)
    assert bad in committed(root)


FILES = ["COMMIT", "manifest.json", "rank-00000.json", "rank-00000/optimizer-000.safetensors"]


# Without its COMMIT a folder is not a checkpoint, so that one alone cannot be missing.
@pytest.mark.parametrize(
    ("what", "how"),
    [(what, how) for what in FILES for how in ("flip", "cut", "missing") if (what, how) != ("COMMIT", "missing")],
)
def test_damage_to_any_latest_file_is_named(root, caplog, what, how):
    started(root, saved_at=(4, 6))
    corrupt(root, name_at(1, 6), what, how)
    life = started(root)
    assert life.run.digest() == digest_at(4)
    (passed,) = attempts(tree(root))[2]["passed_over"]
    assert passed["checkpoint"] == name_at(1, 6)
    assert what in passed["reason"]
    assert passed["reason"].splitlines()[0] in caplog.text


def test_all_corrupt_is_error_naming_each(root):
    """Nothing is started afresh, and nothing is changed."""
    started(root, saved_at=(4, 6))
    for batches in (4, 6):
        corrupt(root, name_at(1, batches))
    before = tree(root)
    with pytest.raises(CorruptCheckpointError) as raised:
        Life(root).restore()
    assert name_at(1, 4) in str(raised.value)
    assert name_at(1, 6) in str(raised.value)
    assert tree(root) == before


def test_corrupt_chosen_checkpoint_is_error(root):
    running = started(root, saved_at=(4, 6))
    corrupt(root, name_at(1, 6))
    with pytest.raises(CorruptCheckpointError, match="weights-000"):
        Life(root).restore(name_at(1, 6))
    assert running.saved_at(7)


@pytest.mark.parametrize("fresh_attempt", [False, True], ids=["no document", "a fresh attempt's document"])
def test_commits_without_attempt_document_are_error(root, fresh_attempt):
    """They never lead to a fresh start."""
    if fresh_attempt:
        started(root)
    started(root, saved_at=(4, 6))
    root.remove(f"attempts/00000{1 + fresh_attempt}.json")
    before = tree(root)
    with pytest.raises(CorruptCheckpointError, match="attempts/"):
        Life(root).restore()
    assert tree(root) == before


def test_commits_of_another_run_are_refused(root, new_root):
    started(root, saved_at=(4, 6))
    other = new_root()
    started(other, saved_at=(4, 6))
    root.put("attempts/000001.json", other.get("attempts/000001.json"))
    with pytest.raises(CorruptCheckpointError, match="token"):
        Life(root).restore()


def test_damaged_attempt_document_is_skipped(root):
    started(root, saved_at=(4, 6))
    started(root, saved_at=(7,))
    root.put("attempts/000002.json", b"{}")
    life = started(root)
    assert life.run.digest() == digest_at(6)
    assert "000002" in attempts(tree(root))[3]["passed_over"][0]["checkpoint"]


@pytest.mark.parametrize("folder", ["attempts", "checkpoints"])
@pytest.mark.parametrize("nth", [1, 2])
def test_listing_failure_is_never_fresh_start(root, folder, nth):
    started(root, saved_at=(4, 6))
    fault = Fault("error", operations={"list"}, key=folder, nth=nth)
    life = Life(root, faults=[fault])
    with pytest.raises(StorageError, match="injected"):
        life.restore()
    assert fault.fired == 1
    documents = attempts(tree(root))
    assert all(document["parent"] is not None for number, document in documents.items() if number > 1)
    assert nth == 2 or sorted(documents) == [1]
    assert life.restore().checkpoint == name_at(1, 6)


def test_early_start_failure_spares_running_job(root):
    """The start fails before it creates its attempt."""
    running = started(root, saved_at=(4, 6))
    for nth in range(1, 100):
        late = Life(root, faults=[Fault("error", nth=nth)])
        with suppress(StorageError):
            late.restore()
        if any(call.operation == "create" for call in late.storage.calls):
            break
        assert running.saved_at(6 + nth) == name_at(1, 6 + nth)
    assert nth > 10


# Retention


def test_frozen_shards_stay_while_attempt_has_commits(root):
    def frozen():
        return sorted({key.split("/")[1] for key in tree(root) if key.startswith("frozen/")})

    started(root, saved_at=(4, 6))
    second = started(root, saved_at=(8,))
    assert committed(root) == [name_at(1, 6), name_at(2, 8)]
    assert frozen() == ["a000001", "a000002"]
    assert digest_of(root, name_at(1, 6)) == digest_at(6)
    second.saved_at(10)
    assert committed(root) == [name_at(2, 8), name_at(2, 10)]
    assert frozen() == ["a000002"]
    check_new_start(root, latest=name_at(2, 10))
    assert frozen() == ["a000003"]


def test_unparsable_commit_keeps_data_and_frozen_shards(root):
    started(root, saved_at=(4, 6))
    corrupt(root, name_at(1, 6), "COMMIT", "cut")
    kept = {key: data for key, data in tree(root).items() if name_at(1, 6) in key or key.startswith("frozen/a000001")}
    assert len(kept) > 4
    life = started(root, saved_at=(8, 10, 11))
    assert kept.items() <= tree(root).items()
    assert name_at(1, 4) not in committed(root)
    assert life.manager.latest().name == name_at(2, 11)


def test_parent_is_kept_until_second_own_commit(root):
    started(root, saved_at=(4, 6, 8), keep=KeepLatest(3))
    life = Life(root, keep=KeepLatest(1))
    life.restore(name_at(1, 4))
    life.saved_at(5)
    assert name_at(1, 4) in committed(root)
    life.saved_at(6)
    assert name_at(1, 4) not in committed(root)
    # What the branch left behind is not on its lineage.
    assert {name_at(1, 6), name_at(1, 8)} <= set(committed(root))


# Errors that reach the training thread


def test_failed_saves_raise_beyond_error_budget(root):
    life = started(root, saved_at=(4,), save=EVERY_STEP)
    life.storage.inject(Fault("error", operations={"write"}, times=None))
    life.save_at(5)
    for _ in range(2):
        life.run.train_step()
        life.manager.step(life.run).exception()
    life.run.train_step()
    with pytest.raises(SaveFailedError, match="3 in a row"):
        life.manager.step(life.run)
    assert committed(root) == [name_at(1, 4)]
    check_new_start(root, latest=name_at(1, 4))


def test_takeover_is_reported_without_readable_document(root):
    old = started(root, saved_at=(4,), save=EVERY_STEP)
    started(root)
    old.storage.inject(Fault("error", operations={"read"}, key="attempts/000002.json", times=None))
    assert_stopped(old)
