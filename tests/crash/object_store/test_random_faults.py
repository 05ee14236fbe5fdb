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
ACTIONS = ["500", "503", "slow_down", "reset_before", "reset_mid_body", "reset_after", "truncate", "stall_request"]


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


@pytest.mark.parametrize("saves", [8, pytest.param(SAVES, marks=pytest.mark.extended)])
def test_nothing_is_lost_and_nothing_is_left(saves, bucket, proxy):
    options = {"retry_for": timedelta(seconds=0.5), "request_timeout": timedelta(seconds=0.25)}
    actions = ACTIONS
    if saves < SAVES:
        # Nothing here may depend on how fast the machine is: what was waited for is all the time there is, and no
        # request has to be answered within a moment, so none of them stalls.
        options = {"retry_for": timedelta(seconds=0.5), "real": lambda: 0.0}
        actions = ACTIONS[:-1]
    faults = trouble(proxy, 7, actions)
    acknowledged, tries, lives, life = [], 0, 0, None
    while tries < saves or len(acknowledged) <= 5:
        if life is None:
            lives += 1
            assert lives < 40 * saves, "a start never succeeds"
            run = NumpyRun(accumulation_steps=CYCLE)
            manager = CheckpointManager(opened(proxy.endpoint, bucket, seed=lives, **options), keep=KeepLatest(3))
            with suppress(StorageError):
                point = manager.restore(run)
                life = manager
                # What was acknowledged is never lost: this start stands at the newest of all, or at a later one whose
                # acknowledgement was lost.
                if acknowledged:
                    assert point.batches_delivered >= acknowledged[-1], (point, acknowledged[-1])
                assert run.digest() == digest_at(run.batches)
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

    final = NumpyRun(accumulation_steps=CYCLE)
    with CheckpointManager(opened(bucket.endpoint, bucket), keep=KeepLatest(3)) as manager:
        point = manager.restore(final)
        assert point.batches_delivered >= acknowledged[-1]
        assert final.digest() == digest_at(final.batches)
        look = Look(bucket)
        look.assert_clean()
        assert look.latest == point.checkpoint
        storage = opened(bucket.endpoint, bucket)
        for name in look.committed:
            cycles, micro = int(name[9:19]), int(name[21:25])
            assert digest_of(storage, name) == digest_at(cycles * CYCLE + micro), name
        for _ in final.train_until(final.batches + 5):
            pass
        name = manager.save(final).result()
    assert Look(bucket).latest == name
