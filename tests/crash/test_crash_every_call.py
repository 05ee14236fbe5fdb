"""The storage fails, or the process dies, at every single call of a start and of a save with retention.

Two saves are enumerated, since each does what the other does not: the first one of an attempt writes the frozen
shard; the second one removes the last checkpoint of the attempt before, and with it that attempt's frozen shard.

Each call of a save that changes something meets every moment and action. In a bucket, where one such life takes a
second, and in a start, each call meets one of them, in turn among the calls of its kind, and a create meets all. A call
that only looks fails.
"""

from collections import Counter
from contextlib import contextmanager

import pytest
from support.runs.scenario import (
    AT_6,
    AT_8,
    AT_10,
    Life,
    batches_of,
    check_new_start,
    committed,
    digest_at,
    digest_of,
    folders,
    history,
    name_at,
    tree,
)

from ckptkit.errors import StorageError
from ckptkit.testing.faults import DIVISIBLE, EVERY, MUTATING, Fault, Killed

from .lives import killed_saving, started

# An error before a call leaves what a kill before it leaves, and the process lives on as after the other errors. A kill
# after a call leaves what a kill before the next change leaves, and so does one before a call that only looks.
MOMENTS = [("during", "error"), ("after", "error"), ("before", "kill"), ("during", "kill")]
ERRORS = [("before", "error"), ("during", "error"), ("after", "error")]


def has(call, when, action):
    if (when, action) == ("before", "error"):
        return call.operation in EVERY
    return call.operation in (DIVISIBLE if when == "during" else MUTATING)


@contextmanager
def named(what):
    """Say at which call of the enumeration an assertion failed."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"with the fault at {what}: {error}") from error


def wreck(root):
    """The history, and an attempt 2 that died right before the COMMIT of its first save."""
    history(root)
    killed_saving(root, 8)
    assert folders(tree(root)).uncommitted == [AT_8]


@pytest.fixture(scope="module")
def saving(made):
    """The calls of each of the two saves, without any fault."""
    life = Life(made(history))
    life.restore()
    calls = [life.calls_of(lambda batches=batches: life.saved_at(batches)) for batches in (8, 10)]
    assert committed(life.root) == [AT_8, AT_10]
    assert not any(key.startswith("frozen/a000001") for key in tree(life.root))
    return calls


def commit_of(calls):
    """Where in ``calls`` the checkpoint is committed."""
    return next(
        index for index, call in enumerate(calls) if call.operation == "create" and call.keys[0].endswith("/COMMIT")
    )


def faults(calls, moments, *, in_turn):
    """The faults at the calls, each with the call's index, its moment, and in words."""
    seen = Counter()
    for index, call in enumerate(calls):
        having = [moment for moment in moments if has(call, *moment)]
        if in_turn and call.operation != "create" and having:
            having = having[seen[call.operation] % len(having) :][:1]
        seen[call.operation] += 1
        for when, action in having:
            what = f"{index}: {action} {when} {call}"
            yield index, (when, action), what, Fault(action, nth=index + 1, when=when)


def test_enumerated_saves_cover_every_kind_of_call(saving):
    calls = [call for save in saving for call in save]
    done = {(call.operation, key.split("/")[0]) for call in calls for key in call.keys}
    assert {
        ("list", "attempts"),
        ("list", "checkpoints"),
        ("read", "attempts"),
        ("read", "checkpoints"),
        ("write", "frozen"),
        ("write", "checkpoints"),
        ("create", "checkpoints"),
        ("delete", "checkpoints"),
        ("delete", "frozen"),
    } <= done
    deleted = [key for call in calls if call.operation == "delete" for key in call.keys]
    assert f"checkpoints/{name_at(1, 4)}/COMMIT" in deleted
    assert f"checkpoints/{AT_6}/COMMIT" in deleted


def test_fault_at_any_save_call_keeps_last_commit(kind, made, saving):
    first, second = saving
    for index, (when, action), what, fault in faults(first + second, MOMENTS, in_turn=kind == "s3"):
        with named(what):
            root = made(history)
            life = started(root)
            life.storage.inject(fault)
            outcome = None
            for batches in (8, 10):
                outcome = life.save_at(batches).exception()
                if outcome is not None:
                    break
            assert fault.fired == 1

            hit, at, earlier = (first, index, []) if index < len(first) else (second, index - len(first), [AT_8])
            # A failing create of COMMIT is settled within the save; only a death before it leaves no commit.
            survived = at > commit_of(hit) or (at == commit_of(hit) and (when, action) != ("before", "kill"))
            if action == "kill":
                assert isinstance(outcome, Killed)
                commits = [*earlier, AT_8 if hit is first else AT_10] if survived else earlier
            else:
                # A save that says it failed has no commit, and one that has a commit does not say so.
                assert isinstance(outcome, StorageError) != survived
                commits = [AT_8, AT_10] if survived else earlier
            ever = [name_at(1, 4), AT_6, *commits]
            assert set(ever[-2:]) <= set(committed(root)) <= set(ever)
            check_new_start(root, latest=ever[-1])


def test_process_saves_again_after_error_at_any_call(made, saving):
    for _, _, what, fault in faults(saving[0] + saving[1], ERRORS, in_turn=True):
        with named(what):
            root = made(history)
            life = started(root)
            life.storage.inject(fault)
            names = []
            for batches in (8, 10):
                begun = len(life.storage.calls)
                first = life.save_at(batches)
                if first.exception() is None:
                    names.append(first.result())
                    continue
                # A folder was begun if anything was written for it; its name is never used again.
                folder = f"checkpoints/{name_at(2, batches)}/"
                used = any(key.startswith(folder) for call in life.storage.calls[begun:] for key in call.keys)
                assert used == (name_at(2, batches) in folders(tree(root)).void)
                names.append(life.saved_at(batches))
                # Its data goes with the next save, after that one's fence check.
                left = [key for key in tree(root) if key.startswith(folder)]
                if used:
                    assert left == [f"{folder}COMMIT"]
                assert names[-1] == name_at(2, batches, 2 if used else 1)
            assert fault.fired == 1
            assert names == committed(root)[-2:]
            for name in names:
                assert digest_of(root, name) == digest_at(batches_of(name))
            check_new_start(root, latest=names[-1])


def test_commit_with_lost_reply_counts_as_committed(made):
    """ "It exists" is asked for until it is heard: only that vouches that the COMMIT is durable."""
    for failures in (1, 2):
        root = made(history)
        life = started(root)
        lost = Fault("error", operations={"create"}, key="*/COMMIT", when="after", times=failures)
        life.storage.inject(lost)
        assert life.save_at(8).result() == AT_8
        assert lost.fired == failures
        assert committed(root) == [AT_6, AT_8]


def test_next_save_settles_unconfirmed_commit(made):
    root = made(history)
    life = started(root)
    lost = life.storage.inject(Fault("error", operations={"create"}, key="*/COMMIT", when="after"))
    unreadable = life.storage.inject(Fault("error", operations={"read"}, key=f"checkpoints/{AT_8}/COMMIT", times=2))
    assert isinstance(life.save_at(8).exception(), StorageError)
    assert (lost.fired, unreadable.fired) == (1, 2)
    assert AT_8 in committed(root)
    # The same progress again: it is there already, and nothing is written but that this is known now.
    before = tree(root)
    assert life.save_at(8).result() == AT_8
    assert tree(root).keys() - before.keys() == {"events/a000002-0001.jsonl"}
    assert tree(root).items() >= before.items()
    check_new_start(root, latest=AT_8)


@pytest.mark.parametrize("make", [history, wreck, None], ids=["sound run", "died before COMMIT", "nothing there"])
def test_fault_at_any_start_call_keeps_the_run(made, make):
    latest = None if make is None else AT_6
    life = Life(made(make))
    calls = life.calls_of(life.restore)
    assert life.run.digest() == digest_at(6 if make else 0)
    # The sweep looks at the attempts three times: its fence check and two indexes.
    sweeping = [index for index, call in enumerate(calls) if call == ("list", ("attempts",))][-3]
    for index, (_, action), what, fault in faults(calls, [ERRORS[0], *MOMENTS], in_turn=True):
        with named(what):
            root = made(make)
            before = committed(root)
            life = Life(root, faults=[fault])
            outcome = None
            try:
                life.restore()
            except (StorageError, Killed) as error:
                outcome = error
            assert fault.fired == 1
            assert committed(root) == before
            if action == "kill":
                assert isinstance(outcome, Killed)
            elif outcome is None:
                # Only a create may shrug off a failure, since it can be settled by looking; the question whether the
                # attempt before is alive, which events answer; and the sweep, which has the next start to do what is
                # left. Where no checkpoint is there, events forbid a fresh start: then their failure is the start's.
                asks_events = latest is not None and any(key.startswith("events") for key in calls[index].keys)
                assert calls[index].operation == "create" or asks_events or index >= sweeping
                assert life.run.digest() == digest_at(6 if make else 0)
            else:
                # Not a fresh start, and not a half-open manager: the same call works when the storage does.
                assert life.restore().checkpoint == latest
                assert life.run.digest() == digest_at(6 if make else 0)
                assert life.saved_at(9)
                assert digest_of(root, committed(root)[-1]) == digest_at(9)
                continue
            check_new_start(root, latest)
