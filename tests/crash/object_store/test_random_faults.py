"""Two hundred saves with retention while every fifth request fails in one way or another."""

import random
from contextlib import suppress
from datetime import timedelta

import pytest
from support.runs.bucket import CYCLE, Look, digest_at, digest_of, opened
from support.servers.faults import RequestFault

from ckptkit.errors import SaveFailedError, StaleAttemptError, StorageError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.state import NumpyRun

SAVES = 200
SHARE = 0.2
LONG = timedelta(minutes=5)
ACTIONS = ["500", "503", "slow_down", "reset_before", "reset_mid_body", "reset_after", "truncate", "stall_request"]


class Large(NumpyRun):
    """One whose files go in parts, the frozen one too."""

    def __init__(self, seed: int = 7, *, accumulation_steps: int = CYCLE) -> None:
        super().__init__(seed, accumulation_steps=accumulation_steps, size=(6 << 20) // 4)


def trouble(proxy, seed, actions):
    """Faults of which one strikes every fifth request."""
    # The first that strikes is it, so each takes its part of what the ones before it leave.
    faults, left = [], 1.0
    for action in actions:
        part = SHARE / len(actions)
        fault = RequestFault(action, times=None, probability=part / left, rng=random.Random(seed + len(faults)))
        faults.append(proxy.inject(fault))
        left -= part
    return faults


@pytest.mark.parametrize(
    ("make", "saves", "retry_for"),
    [
        pytest.param(NumpyRun, SAVES, LONG, marks=pytest.mark.extended),  # less happens where all is tried again
        (NumpyRun, 8, timedelta(seconds=0.5)),
        pytest.param(NumpyRun, SAVES, timedelta(seconds=0.5), marks=pytest.mark.extended),
        pytest.param(Large, 10, LONG, marks=pytest.mark.extended),
    ],
    ids=["patient", "few-impatient", "impatient", "in-parts"],
)
def test_nothing_is_lost_and_nothing_is_left(make, saves, retry_for, bucket, proxy):
    silence = timedelta(seconds=0.25 if make is NumpyRun else 2)
    options = {"retry_for": retry_for, "request_timeout": silence}
    actions = ACTIONS
    if saves < SAVES and retry_for != LONG:
        # Nothing here may depend on how fast the machine is: what was waited for is all the time there is, and no
        # request has to be answered within a moment, so none of them stalls.
        options = {"retry_for": retry_for, "real": lambda: 0.0}
        actions = ACTIONS[:-1]
    faults = trouble(proxy, 7, actions)
    acknowledged, tries, lives, life = [], 0, 0, None
    # Where requests time out, more of them do on a busy machine, and it takes more tries to prove as much.
    while tries < saves or len(acknowledged) <= (saves // 2 if retry_for == LONG else 5):
        if life is None:
            lives += 1
            assert lives < 40 * saves, "a start never succeeds"
            run = make(accumulation_steps=CYCLE)
            manager = CheckpointManager(opened(proxy.endpoint, bucket, seed=lives, **options), keep=KeepLatest(3))
            with suppress(StorageError):
                point = manager.restore(run)
                life = manager
                # What was acknowledged is never lost: this start stands at the newest of all, or at a later one whose
                # acknowledgement was lost.
                if acknowledged:
                    assert point.batches_delivered >= acknowledged[-1], (point, acknowledged[-1])
                assert run.digest() == digest_at(run.batches, make)
            continue
        tries += 1
        for _ in run.train_until(run.batches + 1 + tries % 3):
            pass
        try:
            handle = life.save(run)
            if handle.exception() is None:
                acknowledged.append(run.batches)
            assert not isinstance(handle.exception(), StaleAttemptError)
        except SaveFailedError:
            life = None
    counts = {fault.action: fault.fired for fault in faults}
    assert saves < SAVES or all(fired > 0 for fired in counts.values()), counts
    assert sum(counts.values()) > 0.1 * len(proxy.requests)
    proxy.clear()
    proxy.release()

    final = make(accumulation_steps=CYCLE)
    with CheckpointManager(opened(bucket.endpoint, bucket), keep=KeepLatest(3)) as manager:
        point = manager.restore(final)
        assert point.batches_delivered >= acknowledged[-1]
        assert final.digest() == digest_at(final.batches, make)
        look = Look(bucket)
        look.assert_clean()
        assert look.latest == point.checkpoint
        storage = opened(bucket.endpoint, bucket)
        for name in look.committed:
            cycles, micro = int(name[9:19]), int(name[21:25])
            assert digest_of(storage, name, make) == digest_at(cycles * CYCLE + micro, make), name
        for _ in final.train_until(final.batches + 5):
            pass
        name = manager.save(final).result()
    assert Look(bucket).latest == name
