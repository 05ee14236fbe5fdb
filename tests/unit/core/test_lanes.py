"""Jobs beside each other: all are done or one has failed, and then no other begins."""

import threading
from functools import partial

import pytest
from support.interrupted import InterruptedStart

from ckptkit.core.worker import Lanes

LONG_SECONDS = 10.0


def in_lanes(count, jobs):
    with Lanes(count) as lanes:
        for job in jobs:
            lanes.submit(partial(job, lanes.stop))
        lanes.finish()


@pytest.mark.parametrize("startable", [0, 1, 4])
def test_jobs_are_done_with_too_few_threads(monkeypatch, startable):
    """The process may have no more, or be on its way out."""
    real, started = threading.Thread.start, []

    def start(thread):
        if len(started) == startable:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    done = []
    in_lanes(4, [lambda stop, number=number: done.append(number) for number in range(20)])
    assert sorted(done) == list(range(20))
    assert len(started) == startable
    assert not any(thread.is_alive() for thread in started)


def test_after_a_failure_no_job_is_taken():
    begun = []

    def job(number):
        begun.append(number)
        raise ValueError(f"lost {number}")

    with Lanes(1) as lanes:
        lanes.submit(lambda: job(0))
        assert lanes.stop.wait(60)
        for attempt in (lambda: lanes.submit(lambda: job(1)), lanes.finish):
            with pytest.raises(ValueError, match="lost 0"):
                attempt()
    assert begun == [0]


def test_last_job_s_failure_is_raised():
    with pytest.raises(ZeroDivisionError):
        in_lanes(3, [lambda stop: 1 / 0])


def test_what_still_runs_learns_of_a_failure():
    """Of another job, or of who leaves by an error."""
    begun, told = threading.Event(), []

    def waiting(stop):
        begun.set()
        told.append(stop.wait(60))

    def fail():
        assert begun.wait(60)
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        in_lanes(2, [waiting, lambda stop: fail()])
    begun.clear()

    def leave():
        with Lanes(1) as lanes:
            lanes.submit(lambda: waiting(lanes.stop))
            fail()

    with pytest.raises(ValueError, match="lost"):
        leave()
    assert told == [True, True]


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("runs", [True, False])
def test_ctrl_c_in_the_start_of_a_lane_ends_all(nth, runs, monkeypatch):
    ended, raised = [], []

    def use():
        try:
            with Lanes(3) as lanes:
                for number in range(6):
                    if number == nth - 1:
                        raised.append(InterruptedStart(monkeypatch, "ckptkit-lane", runs=runs))
                    lanes.submit(lambda number=number: ended.append(number))
        except KeyboardInterrupt:
            pass

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(LONG_SECONDS)
    assert not user.is_alive()
    assert raised[0].fired == 1
    for one in [one for one in threading.enumerate() if one.name == "ckptkit-lane" and one.is_alive()]:
        one.join(LONG_SECONDS)
        assert not one.is_alive()


def test_lanes_can_be_used_again_after_they_have_finished():
    done = []
    with Lanes(2) as lanes:
        for _ in range(3):
            for number in range(5):
                lanes.submit(lambda number=number: done.append(number))
            lanes.finish()
    assert sorted(done) == sorted([*range(5)] * 3)
