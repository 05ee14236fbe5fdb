"""The bound of an upload: how long each piece waits, and that the end lifts it."""

from __future__ import annotations

import threading

import pytest

from ckptkit.run.upload import UploadPace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.waited: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def test_pieces_wait_for_what_they_take():
    clock = Clock()
    pace = UploadPace(1000, monotonic=clock, pause=clock.pause)
    for size_bytes in (500, 250, 1000):
        pace.spend(size_bytes)
    assert clock.waited == pytest.approx([0.5, 0.25, 1.0])


def test_time_in_which_nothing_was_sent_is_not_saved_up():
    clock = Clock()
    pace = UploadPace(1000, monotonic=clock, pause=clock.pause)
    clock.now += 60
    pace.spend(1000)
    assert clock.waited == [1.0]


def test_without_a_bound_nothing_waits():
    clock = Clock()
    UploadPace(None, monotonic=clock, pause=clock.pause).spend(1 << 40)
    assert clock.waited == []


def test_lifting_wakes_who_waits():
    pace = UploadPace(1)
    waits = threading.Thread(target=pace.spend, args=(10**6,))
    waits.start()
    pace.lift()
    waits.join(30)
    assert not waits.is_alive()
    pace.spend(10**6)
