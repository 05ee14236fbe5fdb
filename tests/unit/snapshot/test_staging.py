"""What a save copies at once is copied by several threads where it is much, and never twice in memory."""

from __future__ import annotations

import threading
import weakref

import numpy as np
import pytest
from support.live import Live, Writer, opened

from ckptkit.core.contents import Capture
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import Leaf, LeafSpec
from ckptkit.snapshot import Handling, StagingArea
from ckptkit.snapshot import staging as module

THREADS = 3
LEAVES = [
    ("w.large", "weights", "micro", "F32", (67,)),
    ("a.large", "accumulators", "micro", "F32", (141,)),
    ("a.small", "accumulators", "micro", "F64", (3,)),
    ("a.scalar", "accumulators", "micro", "F32", ()),
    ("s.odd", "state", "micro", "U8", (7,)),
]


@pytest.fixture(autouse=True)
def _few_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: THREADS)


class Copying:
    """`np` of the module; ``act`` is called before each copy."""

    def __init__(self, act) -> None:
        self.frombuffer, self.uint8, self.act = np.frombuffer, np.uint8, act

    def copyto(self, into, source) -> None:
        self.act()
        np.copyto(into, source)

    def concatenate(self, arrays, **options) -> None:
        self.act()
        np.concatenate(arrays, **options)


@pytest.mark.parametrize("many", [True, False])
def test_large_copy_is_made_in_several_threads(monkeypatch, many):
    monkeypatch.setattr(module, "_LANES_FROM_BYTES", 100 if many else 1 << 20)
    together = threading.Barrier(THREADS, timeout=60)
    seen = set()

    def meet() -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            if many:
                together.wait()  # breaks unless all of them copy

    live = Live(*LEAVES)
    monkeypatch.setattr(module, "np", Copying(meet))
    window, _ = opened(live, copy_all=True)
    writer = Writer(window, live)
    live.scribble("micro")
    writer.check()
    window.release()
    assert len(seen) == (THREADS if many else 1)
    assert window.cost.copied_bytes == sum(spec.size_bytes for spec in live.specs)


def test_copy_that_fails_in_a_thread_ends_the_save(monkeypatch):
    monkeypatch.setattr(module, "_LANES_FROM_BYTES", 0)

    def fail() -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr(module, "np", Copying(fail))
    area = StagingArea(1 << 20)
    with pytest.raises(MemoryError, match="no memory"):
        area.open(Live(*LEAVES).capture(), SaveCost(), Handling(copy_all=True))
    monkeypatch.undo()
    live = Live(*LEAVES)
    window, _ = opened(live, area=area, copy_all=True)
    Writer(window, live).check()


def test_copies_that_looking_makes_are_in_memory_one_at_a_time(monkeypatch):
    """On an accelerator, all of them would be a second state on the host."""
    alive: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
    most = []

    class Copied(np.ndarray):
        pass

    def source(size: int):
        def copied() -> np.ndarray:
            copy = np.full(size, size, np.uint8).view(Copied)
            alive[size] = copy
            most.append(len(alive))
            return copy

        return copied

    sizes = [200, 210, 220, 230]
    leaves = [Leaf(LeafSpec(f"w.{size}", "weights", "cycle", "U8", (size,)), source(size)) for size in sizes]
    capture = Live(*LEAVES).capture()
    window = StagingArea(1 << 20).open(
        Capture(capture.progress, tuple(leaves), {}), SaveCost(), Handling(copy_all=True)
    )
    assert len(most) == len(sizes)
    assert max(most) <= 2  # the one before, until the next one takes its name
    assert len(alive) == 0
    window.release()
