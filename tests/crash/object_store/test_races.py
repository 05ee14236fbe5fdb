"""Two jobs are started on one root at the same moment: one goes on, the other stops and has damaged nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from support.runs.grown import train
from support.runs.roots import Store
from support.runs.scenario import attempts, batches_of, committed, digest_at, digest_of, new_run, tree
from support.servers.faults import RequestFault

from ckptkit.errors import StaleAttemptError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import System
from ckptkit.run.keep_policy import KeepLatest


def job(storage, at_once, host):
    """Start, train and save twice; returns the last checkpoint, or the error that stopped it."""
    run = new_run()
    manager = CheckpointManager(storage, keep=KeepLatest(2), system=System(host=host))
    at_once.wait(60)
    try:
        try:
            manager.restore(run)
        finally:
            at_once.wait(60)  # both have started, or failed to
        for _ in range(2):
            train(run, run.batches + 3)
            name = manager.save(run).result()
        manager.close()
    except StaleAttemptError as error:
        return error
    return name


# The put whose reply is dropped.
DROPPED = {"none": None, "attempt": "*attempts/*", "commit": "*/COMMIT*"}
RACES = 20  # in full; the default suite has a few


@pytest.mark.parametrize(
    ("dropped", "races"),
    [("commit", 2), *(pytest.param(put, RACES, marks=pytest.mark.extended) for put in ("none", "attempt"))],
)
def test_exactly_one_of_two_jobs_goes_on(dropped, races, store, proxy):
    root = store.new()
    with closing(Store(proxy.endpoint)) as by_proxy:
        storages = [root.through(by_proxy).storage() for _ in range(2)]
        for race in range(races):
            before = committed(root)
            path = DROPPED[dropped]
            fault = path and proxy.inject(RequestFault("reset_after", method="PUT", path=path))
            at_once = threading.Barrier(2)
            with ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(job, storage, at_once, f"host-{n}") for n, storage in enumerate(storages)]
                outcomes = [future.result(timeout=120) for future in jobs]
            assert fault is None or fault.fired == 1
            proxy.clear()
            (stopped,) = [outcome for outcome in outcomes if isinstance(outcome, StaleAttemptError)]
            (gone_on,) = [outcome for outcome in outcomes if outcome is not stopped]
            names = committed(root)
            assert names[-1] == gone_on, race
            assert set(names) <= {*before, *names[-2:]}
            assert gone_on.startswith(f"a{max(attempts(tree(root))):06d}-")
            for name in names:
                assert digest_of(root, name) == digest_at(batches_of(name)), name
