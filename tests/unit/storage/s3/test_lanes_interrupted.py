"""Ctrl-C in the start of a lane leaves none that waits for ever."""

from __future__ import annotations

import threading

import pytest
from support.interrupted import InterruptedStart

from ckptkit.storage.s3.lanes import Lanes

LONG_SECONDS = 10.0


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
