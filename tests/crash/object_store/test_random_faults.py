"""Two hundred saves with retention while every fifth request fails in one way or another."""

import random
from contextlib import closing, suppress
from datetime import timedelta

import pytest
from support.runs.roots import Store
from support.runs.scenario import Life, batches_of, committed, digest_at, digest_of, folders, tree
from support.servers.faults import RequestFault

from ckptkit.errors import SaveFailedError, StaleAttemptError, StorageError
from ckptkit.run.keep_policy import KeepLatest

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
def test_nothing_is_lost_and_nothing_is_left(saves, store, proxy):
    options, actions = {"request_timeout": timedelta(seconds=0.25)}, ACTIONS
    if saves < SAVES:
        # Nothing here may depend on how fast the machine is: what was waited for is all the time there is, and no
        # request has to be answered within a moment, so none of them stalls.
        options, actions = {"real": lambda: 0.0}, ACTIONS[:-1]
    faults = trouble(proxy, 7, actions)
    root = store.new()
    acknowledged, tries, lives, life = [0], 0, 0, None
    with closing(Store(proxy.endpoint, patience=timedelta(seconds=0.5), **options)) as by_proxy:
        while tries < saves or len(acknowledged) <= 6:
            if life is None:
                lives += 1
                assert lives < 40 * saves, "a start never succeeds"
                begun = Life(root.through(by_proxy), keep=KeepLatest(3))
                with suppress(StorageError):
                    # What was acknowledged is never lost: this start stands at the newest of all, or at a later one
                    # whose acknowledgement was lost.
                    assert begun.restore().batches_delivered >= acknowledged[-1]
                    assert begun.run.digest() == digest_at(begun.run.batches)
                    life = begun
                continue
            tries += 1
            try:
                error = life.save_at(life.run.batches + 1 + tries % 3).exception()
                assert not isinstance(error, StaleAttemptError)
                acknowledged += [life.run.batches] if error is None else []
            except SaveFailedError:
                life = None
    counts = {fault.action: fault.fired for fault in faults}
    assert saves < SAVES or all(fired > 0 for fired in counts.values()), counts
    assert sum(counts.values()) > 0.1 * len(proxy.requests)
    proxy.clear()
    proxy.release()

    final = Life(root, keep=KeepLatest(3))
    assert final.restore().batches_delivered >= acknowledged[-1]
    assert final.run.digest() == digest_at(final.run.batches)
    files = tree(root)
    names = committed(root)
    assert root.uploads() == folders(files).uncommitted == []
    assert {name for name in folders(files).void if len([key for key in files if name in key]) > 1} == set()
    assert {key[7:14] for key in files if key.startswith("frozen/")} <= {name[:7] for name in names}
    for name in names:
        assert digest_of(root, name) == digest_at(batches_of(name)), name
    assert final.saved_at(final.run.batches + 5) == committed(root)[-1]
