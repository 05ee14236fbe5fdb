"""Requests are tried again while that may help and patience lasts, and the log tells of trouble that lasts."""

import contextlib
import gc
import random
import weakref
from datetime import timedelta

import pytest

from ckptkit.core.worker import Latch
from ckptkit.errors import StorageError
from ckptkit.storage.s3.retry import Patience, Retry, Transient

SHORT, LONG = timedelta(seconds=30), timedelta(minutes=5)


class Time:
    def __init__(self):
        self.now = 0.0
        self.waits = []

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def retry(time):
    return Retry(Patience(retrying=LONG, first=SHORT), monotonic=time, wait=time.wait, rng=random.Random(1))


def failing(times=None, error=Transient):
    calls = []

    def request(until):
        calls.append(until)
        if times is None or len(calls) <= times:
            raise error("trouble") from OSError("cause")
        return "answer"

    request.calls = calls
    return request


def test_delays_grow_and_stay_below_their_limit(retry, time):
    retry.call("do it", failing(0))
    assert retry.call("do it", failing(8)) == "answer"
    assert len(time.waits) == 8
    assert all(wait <= min(15.0, 0.2 * 2**tries) for tries, wait in enumerate(time.waits, 1))
    assert sum(time.waits[4:]) > sum(time.waits[:4])


def test_every_request_has_its_own_deadline(retry, time):
    request = failing(3)
    retry.call("do it", request)
    begun = [sum(time.waits[:tries]) for tries in range(4)]
    assert request.calls == pytest.approx([one + 120 for one in begun])


def test_patience_is_short_until_first_answer(retry, time):
    """After the first answer it is long."""
    with pytest.raises(StorageError, match="could not do it: trouble") as raised:
        retry.call("do it", failing())
    assert isinstance(raised.value.__cause__, OSError)
    assert 0 < time.now <= SHORT.total_seconds()
    retry.call("do it", failing(0))
    begun = time.now
    with pytest.raises(StorageError):
        retry.call("do it", failing())
    assert SHORT.total_seconds() < time.now - begun <= LONG.total_seconds()


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])
def test_absence_is_an_answer_and_never_asked_twice(retry, time, error):
    request = failing(error=error)
    with pytest.raises(error):
        retry.call("do it", request)
    assert len(request.calls) == 1
    with pytest.raises(StorageError):
        retry.call("do it", failing())
    assert time.now > SHORT.total_seconds()


def test_what_failed_for_good_is_not_tried_again(retry):
    request = failing(error=StorageError)
    with pytest.raises(StorageError, match="trouble"):
        retry.call("do it", request)
    assert len(request.calls) == 1


@pytest.mark.parametrize("error", [Transient, StorageError, FileNotFoundError])
def test_failed_request_leaves_its_memory_at_once(retry, error):
    """Not only when the collector runs: the body of a request may be large."""

    class Body:
        pass

    def send(body):
        def request(until):
            raise error(f"trouble of {type(body)}") from OSError("cause")

        with contextlib.suppress(StorageError, FileNotFoundError):
            retry.call("do it", request)
        return weakref.ref(body)

    gc.disable()
    try:
        left = send(Body())
        assert left() is None
    finally:
        gc.enable()


def test_nobody_waits_for_what_nobody_wants(retry):
    stop = Latch()
    stop.open()
    request = failing()
    with pytest.raises(StorageError):
        retry.call("do it", request, stop)
    assert len(request.calls) == 1


def test_who_waits_learns_that_nobody_wants_it():
    class Left(Latch):
        def wait(self, timeout=None):
            self.open()

    request = failing()
    with pytest.raises(StorageError):
        Retry(Patience(first=timedelta(seconds=3))).call("do it", request, Left())
    assert len(request.calls) == 2


def test_lasting_trouble_is_logged_once_a_minute(retry, time, caplog):
    """Its end is logged once."""
    retry.call("do it", failing(0))
    retry.call("do it", failing(2))
    assert caplog.text == ""
    retry.call("do it", failing(25))
    told = [record for record in caplog.records if "retrying" in record.message]
    assert 2 <= len(told) <= 1 + time.now / 60
    assert caplog.records[-1].message.startswith("the storage answers again")


def test_request_that_failed_slowly_is_told_at_once(retry, time, caplog):
    retry.call("do it", failing(0))
    tried = []

    def slow(until):
        tried.append(until)
        if len(tried) == 1:
            time.now += 60
            raise Transient("silence")

    retry.call("do it", slow)
    assert "has failed for 60 s" in caplog.records[0].getMessage()
    assert caplog.records[-1].getMessage().startswith("the storage answers again")


def test_each_outage_is_told_by_its_own_length(retry, time, caplog):
    retry.call("do it", failing(0))
    for pause in (1000, 0):
        retry.call("do it", failing(12))
        began, *_, ended = (record.getMessage() for record in caplog.records)
        lasted = [float(word) for message in (began, ended) for word in message.split() if word.isdigit()]
        assert began.startswith("the storage has failed for")
        assert ended.startswith("the storage answers again, after")
        assert 5 <= lasted[0] <= lasted[1] <= 150
        caplog.clear()
        time.now += pause
        retry.call("do it", failing(2))  # over at once: nothing to tell
        assert caplog.text == ""


@pytest.mark.parametrize("field", ["request", "retrying", "first"])
@pytest.mark.parametrize("value", [0, 5, timedelta(0), timedelta(seconds=-1), None])
def test_patience_is_a_duration(field, value):
    with pytest.raises(ValueError, match=field):
        Patience(**{field: value})
