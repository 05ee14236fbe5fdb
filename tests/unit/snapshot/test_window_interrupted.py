"""Ctrl-C at any call of a fence tears nothing, returns every buffer once, and keeps no later fence waiting."""

import contextlib
import itertools
import threading
from functools import partial

import pytest
from support.interrupted import InterruptedCall
from support.live import Live, Writer, opened
from unit.snapshot.live_copies import ONE_BUFFER, check_returned, end_in_time

from ckptkit.core.save_report import SaveCost
from ckptkit.errors import ResumeError
from ckptkit.snapshot import Handling, StagingArea, buffers, staging, window

SNAPSHOT = (window, buffers, threading)
LARGE_BYTES = 236
LEAVES = [
    ("w.large", "weights", "cycle", "F32", (LARGE_BYTES // 4,)),  # several buffers, and no multiple of one
    ("w.bytes", "weights", "cycle", "I8", (21,)),
    ("a.large", "accumulators", "micro", "F32", (2 * ONE_BUFFER // 4,)),  # slices begin with a buffer of their own
]


class Save:
    """One window, and its writer, which reads while the fence waits; no Ctrl-C arrives in the writer's thread."""

    def __init__(self, area: StagingArea, *, by_slices: bool) -> None:
        self.live = Live(*LEAVES)
        self.window, stepped = opened(self.live, area=area, by_slices=by_slices)
        stepped.while_waiting, stepped.waits = self._while_waiting, 0
        self.writer = Writer(self.window, self.live)
        self.is_training = True

    def read(self, count: int) -> int:
        self.is_training = False
        done = self.writer.read_what_is_there(count) if self.window.by_slices else self.writer.read(count)
        self.is_training = True
        return done

    def _while_waiting(self) -> None:
        if not self.read(40):
            self.window._starving = True  # as a writer that waits for a slice says

    def micro_steps(self) -> None:
        """Two micro-steps and the fence; the writer has read the first slice, a whole buffer, at the second one."""
        self.window.advance(1 << 20)
        self.read(1 << 60 if self.window.by_slices else 30)
        self.window.advance(1 << 20)
        self.window.close()

    def check(self, area: StagingArea) -> None:
        """Run the fence again, as the training does that goes on; then everything changes, and the writer ends."""
        self.read(20)
        end_in_time(self.window.close)
        assert not self.window.is_open
        self.live.scribble("micro", "cycle")
        self.writer.check()
        self.window.release()
        check_returned(area)


def at_each_call(act, *, more_than, modules=SNAPSHOT) -> None:
    for nth in itertools.count(1):
        interruption = partial(InterruptedCall, nth, modules)
        if not act(interruption):
            break
    assert nth > more_than


@pytest.mark.parametrize("handler", [False, True])
@pytest.mark.parametrize(("by_slices", "buffer_bytes"), [(False, ONE_BUFFER), (True, ONE_BUFFER), (False, 1 << 20)])
def test_interruption_at_any_call_tears_nothing(by_slices, buffer_bytes, handler):
    """By Ctrl-C; or by a handler that asks ``handle.done()``, which gives the writer a slice, and a second fence."""
    area = StagingArea(buffer_bytes)

    def run(interrupted):
        save, given = Save(area, by_slices=by_slices), []

        def ask():
            given.append(save.window.advance(1))
            with pytest.raises(ResumeError, match="in progress in this thread"):
                save.window.close()

        interruption = interrupted(lambda: save.is_training, *([ask] if handler else []))
        with contextlib.suppress(KeyboardInterrupt), interruption:
            save.micro_steps()
        assert given == [False] * (interruption.fired if handler else 0)
        save.check(area)
        Save(area, by_slices=by_slices).window.release()
        return interruption.fired

    at_each_call(run, more_than=100)


@pytest.mark.parametrize("by_slices", [False, True])
def test_interrupted_release_returns_each_buffer_once(by_slices):
    area, numbers = StagingArea(3 * ONE_BUFFER), itertools.count(1)

    def run(interrupted):
        save, ctrl_c = Save(area, by_slices=by_slices), interrupted()
        save.window.advance(3)
        save.read(1 << 60 if next(numbers) % 2 else 100)
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            save.window.release()
        save.window.release()
        check_returned(area)
        return ctrl_c.fired

    at_each_call(run, more_than=10)


def test_interrupted_start_leaves_the_memory_limit():
    """Else each Ctrl-C would take a buffer away from all later saves."""
    area = StagingArea(ONE_BUFFER)

    def run(interrupted):
        ctrl_c = interrupted()
        with contextlib.suppress(KeyboardInterrupt), ctrl_c:
            area.open(Live(*LEAVES).capture(), SaveCost(), Handling()).release()
        check_returned(area)
        return ctrl_c.fired

    at_each_call(run, more_than=100, modules=(*SNAPSHOT, staging))
