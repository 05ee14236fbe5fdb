"""What a run records beside itself, by what lies on storage, and what that may cost: nothing."""

import logging
import math
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from support.clock import Manual
from support.live import Stall, let_end
from support.runs import grown
from support.runs.dict_storage import DictStorage
from support.runs.grown import train

import ckptkit.format.events
from ckptkit.errors import StaleAttemptError, StorageError
from ckptkit.format.events import Began, Ended, LeftOut, Point, Removed, Saved
from ckptkit.manager import recorder
from ckptkit.manager.manager import CheckpointManager
from ckptkit.run.event_log import read_events
from ckptkit.run.index import Documents
from ckptkit.run.keep_policy import KeepLatest
from ckptkit.testing.faults import Fault, FaultyStorage
from ckptkit.testing.state import NumpyRun


class Tensor:
    """Says when it was read."""

    size = 1

    def __init__(self, value: float, read: list[float]) -> None:
        self._value, self._read = value, read

    def asnumpy(self) -> np.ndarray:
        self._read.append(self._value)
        return np.array(self._value, np.float32)


class Parameter(Tensor):
    """As the frameworks' own, changed in place."""


EVENTS: Any = {"operations": {"create"}, "key": "events/*"}


def fail(storage: FaultyStorage, times: int | None = None) -> Fault:
    """Let the storage fail where events are written; each put tries three times."""
    return storage.inject(Fault("error", times=times, **EVENTS))


@pytest.fixture
def time() -> Manual:
    return Manual()


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(DictStorage())


def started(storage, time: Manual | None = None, k: int = 1) -> tuple[CheckpointManager, NumpyRun]:
    clocks = {"clock": time.time_of_day, "monotonic": time} if time is not None else {}
    return grown.started(storage, NumpyRun(accumulation_steps=k), keep=KeepLatest(2), **clocks)


def events_in(storage) -> list[object]:
    files = read_events(storage, Documents(storage))
    assert files.problems == {}
    return [event for segment in files.segments for event in segment.events]


def kinds_in(storage) -> list[str]:
    return [event.kind for event in events_in(storage)]


def segments_in(storage: FaultyStorage) -> list[str]:
    return sorted(storage.walk("events/"))


def tries(storage: FaultyStorage) -> int:
    return sum(call.operation == "create" and call.keys[0].startswith("events/") for call in storage.calls)


def save_at(manager: CheckpointManager, run: NumpyRun, *batches: int) -> None:
    for at in batches:
        train(run, at)
        manager.save(run).result()


def test_how_an_attempt_ended_is_told():
    for error, how in [
        (RuntimeError("Malloc failed\nat line 3"), "failed"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "preempted"),
        (SystemExit(1), "failed"),
        (StaleAttemptError("another"), "overtaken"),
        (None, "closed"),  # without a last save it is not finished
    ]:
        manager, run = started(storage := FaultyStorage(DictStorage()), k=4)
        save_at(manager, run, 3)
        with pytest.raises(type(error)) if error is not None else nullcontext(), manager:
            if error is not None:
                raise error
        ended, kind = events_in(storage)[-1], None if error is None else type(error).__name__
        message = "" if error is None else str(error).partition("\n")[0]
        assert (ended.how, ended.error, ended.message) == (how, kind, message)


def losses_in(storage) -> dict[int, float | None]:
    points = [event for event in events_in(storage) if isinstance(event, Point)]
    return {point.last: point.values["loss"].mean for point in points if "loss" in point.values}


@np.errstate(invalid="raise")  # so that the sum of both infinities would raise as a NumPy number
def test_step_metrics_are_recorded_as_cycle_means(time):
    """Also of a loop that gives values now and then, and never where a cycle ends."""
    for seen, expected in [((0, 1, 2, 3), {1: 2.5, 2: 6.5, 3: 10.5}), ((1, 2), {1: 1.5, 2: 5.5})]:
        manager, run = started(storage := FaultyStorage(DictStorage()), time, k=4)
        for batches in run.train_until(12):
            if batches % 4 in seen:
                manager.step(run, {"loss": float(batches), "gain": np.float64(math.inf * (-1) ** batches)})
        manager.close()
        assert losses_in(storage) == expected  # of the last cycle nobody may have said that it ended


def test_cycle_split_by_resume_has_no_mean(storage, time):
    for last in (6, 12):
        manager, run = started(storage, time, k=4)
        with manager:
            for batches in run.train_until(last):
                manager.observe({"loss": float(batches)}, {"gradient_norm": 7.0} if batches % 4 == 0 else {})
                manager.step(run)
            manager.save_final(run)
    points = [event for event in events_in(storage) if isinstance(event, Point)]
    # Of step 2 the first attempt saw two micro-steps and the second one the others: neither has a mean that is true.
    assert [(point.last, sorted(point.values)) for point in points] == [
        (1, ["gradient_norm", "loss"]),
        (2, ["gradient_norm"]),
        (3, ["gradient_norm", "loss"]),
    ]


def test_tensor_is_read_late_and_parameter_immediately(storage):
    read: list[float] = []
    manager, run = started(storage, k=4)
    for batches in run.train_until(100):
        manager.step(run, {"loss": Tensor(batches, read)})
    assert read == []
    manager.step(run, {"rate": Parameter(-1.0, read)})
    assert read == [-1.0]
    for batches in run.train_until(300):
        manager.step(run, {"loss": Tensor(batches, read)})
        assert max(read) < batches - 60
    assert 100 < len(read) < 300
    manager.save(run).result()
    assert len(read) == 301
    manager.close()
    assert losses_in(storage)[75] == pytest.approx(298.5)


def test_what_is_no_single_number_is_left_out(storage):
    class Logits(Tensor):
        size = 10

    manager, run = started(storage)
    train(run, 1)
    values = {"loss": 1, "logits": Logits(1.0, []), "text": "x", "none": None, "array": np.zeros(3)}
    manager.step(run, values)
    manager.step(run, {"one": np.array([2.0]), "nan": math.nan})
    manager.close()
    (first, second) = [event for event in events_in(storage) if isinstance(event, Point)]
    assert {name: spread.mean for name, spread in first.values.items()} == {"loss": 1.0}
    assert {name: spread.mean for name, spread in second.values.items()} == {"one": 2.0, "nan": None}


def test_device_error_reaches_training_thread(storage):
    class Broken(Tensor):
        def asnumpy(self):
            raise RuntimeError("a kernel failed some calls ago")

    manager, run = started(storage)
    train(run, 1)
    manager.step(run, {"loss": Broken(1.0, [])})
    train(run, 2)
    with pytest.raises(RuntimeError, match="a kernel failed"):
        manager.save(run)
    manager.close()


def test_no_value_is_read_after_foreign_error():
    """It may be the device's own: a read might never return."""
    for error, values in [
        (RuntimeError("device lost"), []),
        (StorageError("the data are gone"), [1.0]),
        (KeyboardInterrupt(), [1.0]),
    ]:
        read: list[float] = []
        manager, run = started(storage := FaultyStorage(DictStorage()))
        train(run, 1)
        manager.step(run, {"loss": Tensor(1.0, read)})
        with pytest.raises(type(error)), manager:
            raise error
        assert read == values, error
        assert kinds_in(storage) == ["began", *["point"] * len(values), "ended"]


def test_event_segments_become_rarer_with_age(storage, time):
    manager, run = started(storage, time)
    counts = []
    for minutes in range(1, 161):
        time.now += 60
        save_at(manager, run, minutes)
        counts.append(len(segments_in(storage)))
    # A twentieth of the age: with each of the first 20 minutes, and from 100 minutes on every five.
    assert counts[:20] == list(range(1, 21))
    assert counts[159] - counts[119] == 8
    train(run, 161)
    manager.step(run, {"loss": 5.0})
    manager.save_final(run)  # takes everything along
    assert (losses_in(storage), kinds_in(storage)[-2:]) == ({161: 5.0}, ["saved", "removed"])
    manager.close()
    names = [event.checkpoint for event in events_in(storage) if isinstance(event, Saved)]
    assert len(names) == len(set(names)) == 161


def train_without_saves(manager, run, time, steps, seconds=1.0):
    for batches in run.train_until(steps):
        time.now += seconds
        manager.step(run, {"loss": float(batches)})


def test_events_are_stored_without_a_commit(storage, time):
    """Who saves once an hour can see the loss before."""
    manager, run = started(storage, time)
    train_without_saves(manager, run, time, 191, seconds=0.2)  # after 128 micro-steps, 25.6 s had passed
    assert not tries(storage)
    train_without_saves(manager, run, time, 192, seconds=0.2)
    let_end("ckptkit-events")
    assert losses_in(storage) == {step: float(step) for step in range(1, 129)}  # later ones are not read yet
    train_without_saves(manager, run, time, 1500)
    manager.save_final(run)
    manager.close()
    assert losses_in(storage).keys() >= set(range(1, 1001))  # later ones share points
    assert 2 < len(segments_in(storage)) < 25
    assert kinds_in(storage)[-2:] == ["saved", "ended"]


def test_hung_storage_between_commits_delays_nothing(storage, time, caplog):
    stall = Stall()
    manager, run = started(storage, time)
    storage.inject(Fault(stall, **EVENTS))
    fail(storage)
    train_without_saves(manager, run, time, 900)
    assert tries(storage) == 1
    stall.let_go()
    let_end("ckptkit-events")
    storage.clear()
    assert caplog.text.count("could not store events") == 1
    manager.close()
    assert losses_in(storage) == {step: float(step) for step in range(1, 901)}


def test_failing_storage_warns_once_without_losing_events(storage, time, caplog):
    """In the end each event is stored exactly once."""
    manager, run = started(storage, time)
    fail(storage, 9)
    with caplog.at_level(logging.WARNING):
        for batches in (1, 2, 3, 4):
            time.now += 60
            train(run, batches)
            manager.step(run, {"loss": float(batches)})
            manager.save(run).result()
    manager.close()
    (warning,) = [record.message for record in caplog.records if "events" in record.message]
    assert warning.startswith("could not store events for `ckptkit report`; later saves will try again: StorageError:")
    assert warning.endswith("Checkpoints are not affected. Saving(events=False) turns events off")
    assert losses_in(storage) == {1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0}
    names = [event.checkpoint for event in events_in(storage) if isinstance(event, Saved)]
    assert len(names) == len(set(names)) == 4
    assert kinds_in(storage).count("began") == 1


def test_events_behind_failed_segment_keep_their_order(storage, time, monkeypatch):
    monkeypatch.setattr(ckptkit.format.events, "MAX_SEGMENT_BYTES", 3000)
    manager, run = started(storage, time)
    for batches in run.train_until(30):
        manager.step(run, {"loss": float(batches)})
    fault = fail(storage, 3)
    manager.save(run).result()
    assert fault.fired == 3
    manager.close()
    events = events_in(storage)
    assert len(segments_in(storage)) > 2
    assert [event.last for event in events if isinstance(event, Point)] == [*range(1, 31)]
    assert [isinstance(events[0], Began), isinstance(events[-1], Ended)] == [True, True]


def test_failed_segment_is_not_tried_at_every_commit(storage, time):
    manager, run = started(storage, time)
    fail(storage)
    asked = []
    for minutes in (100, 10, 0, 10):
        before = tries(storage)
        time.now += 60 * minutes
        save_at(manager, run, run.batches + 1)
        asked.append(tries(storage) > before)
    assert asked == [True, True, False, True]
    storage.clear()
    manager.close()


def test_long_outage_drops_oldest_events_with_count(storage, time, monkeypatch):
    monkeypatch.setattr(recorder, "_MOST_EVENTS", 50)
    manager, run = started(storage, time)
    fail(storage)
    for batches in run.train_until(300):
        manager.step(run, {"loss": float(batches)})
        if batches % 100 == 0:
            manager.save(run).result()
    storage.clear()
    manager.close()
    events = events_in(storage)
    assert len(events) < 110  # what was on its way when the storage failed, and 50
    left_out = sum(event.events for event in events if isinstance(event, LeftOut))
    points = [event.last for event in events if isinstance(event, Point)]
    assert points == sorted(points)
    assert points[-1] == 300
    told = len(points) + sum(isinstance(event, Saved | Removed) for event in events)
    assert told + left_out == 300 + 3 + 1  # points, saves, a removal
    assert isinstance(events[0], Began)


def test_many_saves_in_short_time_lose_nothing(storage, time, monkeypatch):
    """A storage that works has them before memory is full, however short the time is."""
    monkeypatch.setattr(recorder, "_MOST_EVENTS", 40)
    manager, run = started(storage, time)
    time.now += 3600 * 2  # the next files are not due for minutes
    for _ in run.train_until(60):
        manager.save(run).result()
    manager.close()
    events = events_in(storage)
    assert sum(isinstance(event, Saved) for event in events) == 60
    assert not any(isinstance(event, LeftOut) for event in events)
    assert len(segments_in(storage)) <= 2 + 120 / 10
