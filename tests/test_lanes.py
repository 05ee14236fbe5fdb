"""Jobs on a few threads at once are all done, however many threads there are to be had."""

from __future__ import annotations

import threading

import pytest

from ckptkit.storage.lanes import Lanes


@pytest.mark.parametrize("threads", [0, 1])
def test_jobs_run_without_further_threads(threads, monkeypatch):
    """A process may have no more threads, and an interpreter on its way out makes none."""
    start, started = threading.Thread.start, []

    def few(thread):
        if len(started) == threads:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", few)
    done, by = [], set()

    def job(number):
        done.append(number)
        by.add(threading.current_thread())

    with Lanes(4) as lanes:
        for number in range(9):
            lanes.submit(lambda number=number: job(number))
        lanes.finish()
    assert done == list(range(9))
    assert by == set(started or [threading.current_thread()])
