"""What tests of windows share: a training that goes on, others that act in the middle of a copy, and what must hold."""

import itertools
import threading

import numpy as np
from support.live import SMALL_BUFFER_BYTES, Writer, opened

ONE_BUFFER = SMALL_BUFFER_BYTES
PLENTY = 1 << 20
LONG_SECONDS = 60.0


def go_on(live, window, *, held=()) -> None:
    """One micro-step, then the fence, then the update: all that training may change is changed."""
    live.scribble("micro")
    window.close()
    live.scribble("cycle", *({"frozen"} - set(held)))


def begun(live, area, **handling):
    """A live state, its window, what its fence waits for, and a writer that reads a little at each wait."""
    window, stepped = opened(live, area=area, **handling)
    writer = Writer(window, live)
    stepped.while_waiting = lambda: writer.read(5)
    return live, window, stepped, writer


def check_returned(area) -> None:
    free = area._pool._free
    assert len({id(buffer) for buffer in free}) == len(free), "a buffer is handed out twice"
    assert len(free) * ONE_BUFFER == area._pool.made_bytes, "a buffer is lost"


def end_in_time(*actions) -> None:
    threads = [threading.Thread(target=action, daemon=True) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_SECONDS)
        assert not thread.is_alive(), "they wait for each other"


class Copies:
    """`np` of the window's module, whose ``copyto`` lets others act halfway through or after the ``nth`` copy.

    Attributes:
        act: What they do.
        counts: Whether a copy counts.
    """

    def __init__(self, monkeypatch, nth: int, where: str) -> None:
        self.frombuffer, self.uint8 = np.frombuffer, np.uint8
        self.counts, self.act = lambda: True, None
        self.acted = False
        self._nth, self._where, self._copies = nth, where, 0
        monkeypatch.setattr("ckptkit.snapshot.window.np", self)

    def copyto(self, into, source) -> None:
        counts = self.act is not None and self.counts()
        self._copies += counts
        if self.acted or not counts or self._copies != self._nth:
            np.copyto(into, source)
            return
        half = len(into) // 2 if self._where == "halfway" else len(into)
        np.copyto(into[:half], source[:half])
        self.acted = True
        self.act()
        np.copyto(into[half:], source[half:])


def at_each_copy(monkeypatch, where: str, run, *, more_than: int) -> None:
    """Call ``run`` with `Copies` of the first copy, of the second, and so on, until there is none."""
    for nth in itertools.count(1):
        copies = Copies(monkeypatch, nth, where)
        run(copies)
        if not copies.acted:
            break
    assert nth > more_than
