from datetime import timedelta
from types import SimpleNamespace

from support.refusals import unrefused

from ckptkit.core.progress import Progress
from ckptkit.core.save_policy import SaveEvery, stretched

SECOND = timedelta(seconds=1)


def progress_at(delivered: int, k: int = 4, *, ended_before: int = 0) -> Progress:
    cycles, micro_step = divmod(delivered, k)
    counts = {"cycles": cycles + ended_before, "updates": cycles, "micro_step": micro_step, "accumulation_steps": k}
    return Progress(
        epoch=0, batch=delivered, batches_delivered=delivered, cycle_first_batch=delivered - micro_step, **counts
    )


def test_when_a_save_is_due():
    for policy, expected in [
        (SaveEvery(optimizer_steps=1), [4, 8, 12, 16, 20, 24]),
        (SaveEvery(optimizer_steps=2), [8, 16, 24]),
        (SaveEvery(optimizer_steps=7), []),
        (SaveEvery(micro_steps=1), list(range(1, 25))),
        (SaveEvery(micro_steps=6), [6, 12, 18, 24]),
        (SaveEvery(micro_steps=100), []),
        (SaveEvery(optimizer_steps=5) | SaveEvery(micro_steps=9) | SaveEvery(micro_steps=11), [9, 11, 18, 20, 22]),
        (SaveEvery(interval=SECOND), []),
        (SaveEvery(interval=SECOND) | SaveEvery(optimizer_steps=3), [12, 24]),
    ]:
        assert [n for n in range(25) if policy.due(progress_at(n), timedelta(0))] == expected, policy
    progress = progress_at(8, ended_before=3)  # cycles count, and not updates
    assert (progress.updates, progress.cycles) == (2, 5)
    assert [SaveEvery(optimizer_steps=n).due(progress, timedelta(0)) for n in (5, 2)] == [True, False]


def test_interval_is_due_at_first_micro_step_after():
    """Beside cycles, at boundaries only."""
    policy, minutes = SaveEvery(interval=timedelta(minutes=10)), timedelta(minutes=10)
    moments = {timedelta(0): False, minutes - timedelta(microseconds=1): False, minutes: True, timedelta(days=40): True}
    for elapsed, due in moments.items():
        for either in (policy, policy | SaveEvery(optimizer_steps=10**6)):
            assert [either.due(progress_at(at), elapsed) for at in (3, 4)] == [due, due], elapsed
    policy = SaveEvery(optimizer_steps=3, interval=SECOND)
    assert [n for n in range(25) if policy.due(progress_at(n), timedelta(0))] == [12, 24]
    assert [n for n in range(13) if policy.due(progress_at(n), SECOND)] == [4, 8, 12]
    assert policy.by_clock


def test_interval_grows_with_the_stall_to_keep_its_overhead():
    policy = SaveEvery(interval=SECOND, overhead=0.1)
    steps = SaveEvery(optimizer_steps=3)
    assert stretched(policy, 0.1) is policy
    for whole in (policy, steps | policy):
        longer = stretched(whole, 2.0)
        assert not longer.due(progress_at(1), timedelta(seconds=19))
        assert longer.due(progress_at(1), timedelta(seconds=20))
    assert stretched(SaveEvery(interval=SECOND), 2.0) == SaveEvery(interval=SECOND)
    assert stretched(SaveEvery.auto(), 2.0) == SaveEvery.auto()


def test_save_every_refuses():
    rows = [
        ({}, "one of optimizer_steps, micro_steps and interval, or the first and the last; got 0"),
        ({"optimizer_steps": 1, "micro_steps": 1}, "SaveEvery takes one .* got 2"),
        ({"micro_steps": 1, "interval": SECOND}, "SaveEvery takes one .* got 2"),
        ({"optimizer_steps": 1, "micro_steps": 1, "interval": SECOND}, "SaveEvery takes one .* got 3"),
        ({"optimizer_steps": 0}, r"SaveEvery\.optimizer_steps .* at least 1, got 0"),
        ({"optimizer_steps": True}, r"SaveEvery\.optimizer_steps .* got True"),
        ({"micro_steps": 0}, r"SaveEvery\.micro_steps .* got 0"),
        ({"micro_steps": 1.0}, r"SaveEvery\.micro_steps .* got 1\.0"),
        ({"interval": timedelta(0)}, r"SaveEvery\.interval must be a positive timedelta"),
        ({"interval": 10.0}, r"SaveEvery\.interval must be a positive timedelta, got 10\.0"),
        ({"interval": -SECOND}, r"SaveEvery\.interval must be a positive timedelta"),
        ({"interval": SECOND, "overhead": 1}, r"SaveEvery: overhead is a share between 0 and 1, such as 0.01, got 1"),
        ({"micro_steps": 1, "overhead": 0.1}, "SaveEvery: overhead bounds interval, which is not given"),
    ]
    assert unrefused(ValueError, lambda arguments: SaveEvery(**arguments), rows) == {}


def test_what_may_look_at_a_clock_says_so():
    """Ranks have to agree on it then; a policy of the user's own may say nothing of clocks."""
    steps, hourly = SaveEvery(optimizer_steps=2), SaveEvery(interval=timedelta(hours=1))
    policies = [steps, SaveEvery(micro_steps=2), hourly, steps | SaveEvery(micro_steps=5), steps | hourly]
    assert [policy.by_clock for policy in (*policies, steps | SimpleNamespace())] == [
        False,
        False,
        True,
        False,
        True,
        True,
    ]
