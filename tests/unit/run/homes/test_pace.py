"""The bound of an upload: how long each piece waits, and that the end lifts it."""

from __future__ import annotations

import threading

import pytest
from support.clock import Clock

from ckptkit.run.upload import UploadPace


def test_pieces_wait_for_what_they_take():
    """Time in which nothing was sent is not saved up, and without a bound nothing waits."""
    clock = Clock(lambda: 0.0)
    pace = UploadPace(1000, monotonic=clock, pause=clock.wait)
    for size_bytes, seconds in [(500, 0.5), (250, 0.25), (1000, 1.0), (1000, 1.0)]:
        begun = clock()
        pace.spend(size_bytes)
        assert clock() - begun == pytest.approx(seconds)
        clock.wait(60 if size_bytes == 250 else 0)
    UploadPace(None, monotonic=clock, pause=lambda _: pytest.fail("it waits")).spend(1 << 40)


def test_lifting_wakes_who_waits():
    pace = UploadPace(1)
    waits = threading.Thread(target=pace.spend, args=(10**6,))
    waits.start()
    pace.lift()
    waits.join(30)
    assert not waits.is_alive()
    pace.spend(10**6)
