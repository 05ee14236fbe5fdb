"""Two jobs are started on one root at the same moment: one goes on, the other stops and has damaged nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.runs.bucket import CYCLE, Look, digest_at, digest_of, opened
from support.servers.faults import RequestFault

from ckptkit.errors import StaleAttemptError
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import System
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.state import NumpyRun


def job(storage, at_once, host):
    """Start, train and save twice; returns the last checkpoint, or the error that stopped it."""
    run = NumpyRun(accumulation_steps=CYCLE)
    manager = CheckpointManager(storage, keep=KeepLatest(2), system=System(host=host))
    at_once.wait(60)
    try:
        try:
            manager.restore(run)
        finally:
            at_once.wait(60)  # both have started, or failed to
        for _ in range(2):
            for _ in run.train_until(run.batches + 3):
                pass
            name = manager.save(run).result()
        manager.close()
    except StaleAttemptError as error:
        return error
    return name


# Whose reply is dropped: of the put that opens the attempt, of a COMMIT.
DROPPED = {
    "none": None,
    "attempt": {"path": "*attempts/*", "nth": 1},
    "commit": {"path": "*/COMMIT*", "nth": 1},
}


RACES = 50  # in full; the default suite has a few


@pytest.mark.parametrize(
    ("dropped", "races"),
    [("commit", 2), *(pytest.param(one, RACES, marks=pytest.mark.extended) for one in ("none", "attempt"))],
)
def test_exactly_one_of_two_jobs_goes_on(dropped, races, bucket, proxy):
    storages = [opened(proxy.endpoint, bucket, seed=number) for number in range(2)]
    reader = opened(bucket.endpoint, bucket)
    for race in range(races):
        before = Look(bucket).committed
        fault = DROPPED[dropped] and proxy.inject(RequestFault("reset_after", method="PUT", **DROPPED[dropped]))
        at_once = threading.Barrier(2)
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(job, storage, at_once, f"host-{n}") for n, storage in enumerate(storages)]
            outcomes = [one.result(timeout=120) for one in jobs]
        assert fault is None or fault.fired == 1
        proxy.clear()
        stopped = [one for one in outcomes if isinstance(one, StaleAttemptError)]
        gone_on = [one for one in outcomes if not isinstance(one, StaleAttemptError)]
        assert len(stopped) == len(gone_on) == 1, (race, outcomes)
        look = Look(bucket)
        assert look.latest == gone_on[0]
        assert set(look.committed) <= {*before, *look.committed[-2:]}
        newest = max(look.attempts())
        assert gone_on[0].startswith(f"a{newest:06d}-")
        for name in look.committed:
            batches = int(name[9:19]) * CYCLE + int(name[21:25])
            assert digest_of(reader, name) == digest_at(batches), name
