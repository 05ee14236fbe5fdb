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
from ckptkit.storage.s3.errors import Patience, Retry, Transient

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


def test_delays_grow_and_patience_is_short_until_first_answer(retry, time):
    begun = time()
    error = given_up(retry, failing(), match="could not do it: trouble")
    assert isinstance(error.__cause__, OSError)
    assert 0 < time() - begun <= SHORT.total_seconds()
    retry.call("do it", failing(0))
    begun = time()
    given_up(retry, failing())
    assert SHORT.total_seconds() < time() - begun <= LONG.total_seconds()
    time.waits, request, begun = [], failing(8), time()
    assert retry.call("do it", request) == "answer"
    assert all(wait <= min(15.0, 0.2 * 2**tries) for tries, wait in enumerate(time.waits, 1))
    assert sum(time.waits[4:]) > sum(time.waits[:4])
    # Each request has its own deadline.
    assert request.calls == pytest.approx([begun + sum(time.waits[:tries]) + 120 for tries in range(9)])


def test_answers_and_what_failed_for_good_or_nobody_wants_are_not_tried_again(retry, time):
    stop, begun = Latch(), time()
    stop.open()
    for request, wanted in [(failing(error=StorageError), ()), (failing(), (stop,))]:
        given_up(retry, request, *wanted)
        assert len(request.calls) == 1
    late, state = failing(), random.getstate()
    stops = type("Left", (Latch,), {"wait": lambda latch, seconds: latch.open()})()
    given_up(Retry(Patience()), late, stops)  # while it waits
    assert (len(late.calls), random.getstate()) == (2, state)  # which belongs to training
    for error in (FileNotFoundError, FileExistsError):
        request = failing(error=error)
        with pytest.raises(error):
            retry.call("do it", request)
        assert len(request.calls) == 1
    given_up(retry, failing())
    assert time() - begun > SHORT.total_seconds()  # absence was an answer


def test_failed_request_leaves_its_memory_at_once(retry):
    """Not only when the collector runs: the body of a request may be large."""

    class Body: ...

    def left(body):
        def request(until):
            raise Transient(f"trouble of {type(body)}") from OSError("cause")

        with contextlib.suppress(StorageError):
            retry.call("do it", request)
        return weakref.ref(body)

    gc.disable()
    try:
        body = left(Body())
        assert body() is None
    finally:
        gc.enable()


def test_lasting_trouble_is_logged_once_a_minute(retry, time, caplog):
    retry.call("do it", failing(0))
    retry.call("do it", failing(2))  # over at once: nothing to say
    assert caplog.text == ""
    began = time()
    retry.call("do it", failing(25))
    *warnings, ended = (record.getMessage() for record in caplog.records)
    assert 2 <= len(warnings) <= 1 + (time() - began) / 60
    assert all(message.startswith("the storage has failed for") for message in warnings)
    assert ended.startswith("the storage answers again, after")
    lasted = [float(word) for message in (warnings[0], ended) for word in message.split() if word.isdigit()]
    assert 5 <= lasted[0] <= lasted[1] <= time() - began + 1
