"""Requests are tried again while that may help and patience lasts, and the log tells of trouble that lasts."""

import contextlib
import gc
import random
import weakref
from datetime import timedelta

import pytest
from support.clock import Clock

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError
from ckptkit.storage.s3.retry import Patience, Retry, Transient

SHORT, LONG = timedelta(seconds=30), timedelta(minutes=5)


class Time(Clock):
    def __init__(self):
        super().__init__(lambda: 0.0)
        self.waits = []

    def wait(self, seconds):
        self.waits.append(seconds)
        super().wait(seconds)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def retry(time):
    return Retry(Patience(retrying=LONG, first=SHORT), monotonic=time, wait=time.wait, rng=random.Random(1))


def failing(times=None, error=Transient):
    def request(until):
        request.calls.append(until)
        if times is None or len(request.calls) <= times:
            raise error("trouble") from OSError("cause")
        return "answer"

    request.calls = []
    return request


def given_up(retry, request, *stop, match="trouble"):
    with pytest.raises(StorageError, match=match) as raised:
        retry.call("do it", request, *stop)
    return raised.value


def test_delays_grow_and_each_request_has_its_own_deadline(retry, time):
    request = failing(8)
    retry.call("do it", failing(0))
    assert retry.call("do it", request) == "answer"
    assert len(time.waits) == 8
    assert all(wait <= min(15.0, 0.2 * 2**tries) for tries, wait in enumerate(time.waits, 1))
    assert sum(time.waits[4:]) > sum(time.waits[:4])
    assert request.calls == pytest.approx([sum(time.waits[:tries]) + 120 for tries in range(9)])


def test_patience_is_short_until_first_answer(retry, time):
    begun = time()
    error = given_up(retry, failing(), match="could not do it: trouble")
    assert isinstance(error.__cause__, OSError)
    assert 0 < time() - begun <= SHORT.total_seconds()
    retry.call("do it", failing(0))
    begun = time()
    given_up(retry, failing())
    assert SHORT.total_seconds() < time() - begun <= LONG.total_seconds()


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_absence_is_an_answer_and_never_asked_twice(retry, time, error):
    request, begun = failing(error=error), time()
    with pytest.raises(error):
        retry.call("do it", request)
    assert len(request.calls) == 1
    given_up(retry, failing())
    assert time() - begun > SHORT.total_seconds()


def test_what_failed_for_good_or_nobody_wants_is_not_tried_again(retry):
    stop = Latch()
    stop.open()
    for request, wanted in [(failing(error=StorageError), ()), (failing(), (stop,))]:
        given_up(retry, request, *wanted)
        assert len(request.calls) == 1


def test_who_waits_learns_that_nobody_wants_it():
    class Left(Latch):
        def wait(self, timeout=None):
            self.open()

    request, state = failing(), random.getstate()
    given_up(Retry(Patience(first=timedelta(seconds=3))), request, Left())
    assert len(request.calls) == 2
    assert random.getstate() == state  # it belongs to training


def test_failed_request_leaves_its_memory_at_once(retry):
    """Not only when the collector runs: the body of a request may be large."""

    class Body:
        pass

    def left(body, error):
        def request(until):
            raise error(f"trouble of {type(body)}") from OSError("cause")

        with contextlib.suppress(StorageError, FileNotFoundError):
            retry.call("do it", request)
        return weakref.ref(body)

    gc.disable()
    try:
        for error in (Transient, StorageError, FileNotFoundError):
            body = left(Body(), error)
            assert body() is None, error
    finally:
        gc.enable()


def test_lasting_trouble_is_logged_once_a_minute(retry, time, caplog):
    retry.call("do it", failing(0))
    for pause in (1000, 0):
        retry.call("do it", failing(2))  # over at once: nothing to tell
        assert caplog.text == ""
        began = time()
        retry.call("do it", failing(25))
        *warnings, ended = (record.getMessage() for record in caplog.records)
        assert 2 <= len(warnings) <= 1 + (time() - began) / 60
        assert all(message.startswith("the storage has failed for") for message in warnings)
        assert ended.startswith("the storage answers again, after")
        lasted = [float(word) for message in (warnings[0], ended) for word in message.split() if word.isdigit()]
        assert 5 <= lasted[0] <= lasted[1] <= time() - began + 1
        caplog.clear()
        time.wait(pause)


def test_request_that_failed_slowly_is_told_at_once(retry, time, caplog):
    retry.call("do it", failing(0))
    slow = failing(1)
    retry.call("do it", lambda until: (slow.calls or time.wait(60), slow(until))[1])
    assert "has failed for 60 s" in caplog.records[0].getMessage()
    assert caplog.records[-1].getMessage().startswith("the storage answers again")
