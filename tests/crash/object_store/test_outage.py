"""The server is gone for a minute in the middle of a run: training does not notice, and the next save commits."""

import threading
import time

import pytest
from support.runs import grown
from support.runs.scenario import CYCLE, committed, folders, tree

from ckptkit.core.save_policy import SaveEvery
from ckptkit.manager.manager import CheckpointManager
from ckptkit.manager.options import Saving
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.state import NumpyRun

OUTAGE_SECONDS = 60.0  # in full
STEP_SECONDS = 0.02
LARGE = 2 << 20  # elements: 8 MiB each of weights and moments, which the fence has to copy


@pytest.fixture(scope="module", autouse=True)
def _small_and_quick():
    """Nothing is small here."""


@pytest.mark.parametrize(
    ("seconds", "size"), [(1.5, LARGE // 8), pytest.param(OUTAGE_SECONDS, LARGE, marks=pytest.mark.extended)]
)
def test_a_minute_without_a_server(seconds, size, store, proxy, caplog):
    reports, root = [], store.new()
    url, options = root.url, {**root.options, "endpoint_url": proxy.endpoint}
    run = NumpyRun(accumulation_steps=CYCLE, size=size)
    manager = CheckpointManager(
        url,
        storage_options=options,
        save=SaveEvery(micro_steps=8),
        keep=KeepLatest(2),
        saving=Saving(on_save=reports.append),
    )
    manager.restore(run)
    pace = threading.Event()  # never set: what a micro-step would take
    longest = 0.0

    def train(until) -> None:
        nonlocal longest
        while not until():
            pace.wait(STEP_SECONDS)
            begun = time.monotonic()
            run.train_step()
            manager.step(run)
            longest = max(longest, time.monotonic() - begun)

    train(lambda: len(reports) >= 2)
    before = committed(root)[-1]
    train(lambda: manager._run.results.busy)
    proxy.down()
    begun, steps = time.monotonic(), run.batches
    train(lambda: time.monotonic() - begun > seconds)
    during = run.batches - steps
    proxy.up()
    seen = len(reports)
    train(lambda: len(reports) >= seen + 2)  # the one under way, and one that began afterwards
    manager.close()

    # How many there are is the machine's affair; that none of them waited for the server is ours.
    assert during > seconds, "training stood still"
    assert longest < 5.0, f"a micro-step took {longest:.1f} s"
    assert manager.skipped_saves >= 1
    assert max(report.cost.buffer_bytes for report in reports) <= 1.5 * 4 * 4 * size + (8 << 20)
    if seconds == OUTAGE_SECONDS:  # a short one may end before the first word of it
        assert "the storage has failed for" in caplog.text
        assert "the storage answers again" in caplog.text
    assert committed(root)[-1] > before
    assert root.uploads() == folders(tree(root)).uncommitted == []
    again = NumpyRun(accumulation_steps=CYCLE, size=size, seed=5)
    point = CheckpointManager(url, storage_options=options).restore(again)
    assert point.checkpoint == committed(root)[-1]
    straight = NumpyRun(accumulation_steps=CYCLE, size=size)
    grown.train(straight, again.batches)
    assert again.digest() == straight.digest()
