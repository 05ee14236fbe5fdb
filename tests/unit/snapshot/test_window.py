"""Whatever the writer has read when training goes on, the bytes that it gets are those of the capture.

What a save copies at once is copied by several threads where it is much, and never twice in memory.
"""

import contextlib
import os
import signal
import threading
import weakref
from functools import partial

import numpy as np
import pytest
from support.live import Live, Writer, cuts, opened
from unit.snapshot.live_copies import (
    LONG_SECONDS,
    ONE_BUFFER,
    PLENTY,
    at_each_copy,
    begun,
    check_returned,
    end_in_time,
    go_on,
)

from ckptkit.core.contents import Capture
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import DTYPES, Leaf, LeafSpec, Lifetime, Role
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.errors import StorageError
from ckptkit.snapshot import Handling, StagingArea
from ckptkit.snapshot import staging as module

Described = tuple[str, Role, Lifetime, str, tuple[int, ...]]

CYCLE: list[Described] = [
    ("w.large", "weights", "cycle", "F32", (67,)),  # several buffers, and no multiple of one
    ("w.one", "weights", "cycle", "U8", (1,)),
    ("w.bytes", "weights", "cycle", "I8", (3, 43)),
    ("m.exact", "optimizer", "cycle", "F64", (16,)),  # two buffers exactly
    ("m.scalar", "optimizer", "cycle", "F32", ()),
    ("m.none", "optimizer", "cycle", "F32", (0, 3)),
]
MICRO: list[Described] = [
    ("w.stat", "weights", "micro", "F32", (5,)),
    ("a.large", "accumulators", "micro", "F32", (41,)),
    ("a.none", "accumulators", "micro", "I32", (0,)),
    ("a.scalar", "accumulators", "micro", "F32", ()),
    ("s.odd", "state", "micro", "U8", (7,)),
]
FROZEN: list[Described] = [
    ("f.large", "weights", "frozen", "BF16", (77,)),
    ("f.small", "weights", "frozen", "I16", (3,)),
]
EVERYTHING = [*CYCLE, *MICRO, *FROZEN]
LARGE: list[Described] = [(f"w.{n}", "weights", "cycle", "F32", (100 + n,)) for n in range(40)]
OF_EVERY_DTYPE: list[Described] = [
    *((f"c.{dtype}", "weights", "cycle", dtype, (31,)) for dtype in DTYPES),
    *((f"m.{dtype}", "weights", "micro", dtype, (3,)) for dtype in DTYPES),
]
TWELVE: list[Described] = [("w", "weights", "cycle", "F32", (12 * ONE_BUFFER // 4,))]
FROZEN_NAMES = frozenset(name for name, *_ in FROZEN)


def bytes_in(live, *lifetimes):
    return sum(spec.size_bytes for spec in live.specs if spec.lifetime in lifetimes)


def all_cuts(leaves, most=100, **handling) -> list[int]:
    live = Live(*leaves)
    window, _ = opened(live, buffer_bytes=PLENTY, **handling)
    places = list(cuts(Writer(window, live)))
    return places[:: 1 + len(places) // most]


PLACES = {  # leaves, how many places, the memory, and how the leaves are treated
    "one buffer": (EVERYTHING, 200, ONE_BUFFER, {}),
    "every dtype": (OF_EVERY_DTYPE, 60, ONE_BUFFER, {}),
    "three buffers": (EVERYTHING, 100, 3 * ONE_BUFFER, {}),
    "slices": (EVERYTHING, 60, PLENTY, {"by_slices": True}),
    "slices of copies": (EVERYTHING, 60, PLENTY, {}),  # as on an accelerator, where looking copies
    "settled": (EVERYTHING, 30, PLENTY, {"settled": FROZEN_NAMES}),
    "settled slices": (EVERYTHING, 30, PLENTY, {"settled": FROZEN_NAMES, "by_slices": True}),
    "settled, all copied": (EVERYTHING, 10, PLENTY, {"settled": FROZEN_NAMES, "copy_all": True}),
    "demoted": (EVERYTHING, 30, PLENTY, {"settled": FROZEN_NAMES, "demoted": frozenset({"f.large"})}),
    "demoted slices": (
        *(EVERYTHING, 30, PLENTY),
        {"settled": FROZEN_NAMES, "demoted": frozenset({"f.large"}), "by_slices": True},
    ),
}


@pytest.mark.parametrize("kind", PLACES)
def test_a_fence_at_any_place_tears_nothing(kind):
    leaves, most, buffer_bytes, handling = PLACES[kind]
    by_slices, copying, held = "slices" in kind, "copies" in kind, ["frozen"] if "settled" in handling else []
    area, first_bytes = StagingArea(buffer_bytes), 0
    for number, cut in enumerate(all_cuts(leaves, most)):
        live = Live(*leaves, copying=copying)
        window, stepped = opened(live, area=area, **handling)
        assert window.by_slices == by_slices
        first_bytes = first_bytes or area._pool.made_bytes
        writer = Writer(window, live, settled=kind.startswith("settled"))
        read = writer.read_what_is_there if by_slices else writer.read
        stepped.while_waiting = lambda writer=writer: writer.read(5)
        read(cut)
        for left in (2, 1) if by_slices else ():
            live.scribble("micro")
            window.advance(left)
            read((1, 100, 10**6)[number % 3])
        if "demoted" in handling:
            bits = live.memory["f.large"].view(np.uint8)
            bits ^= np.uint8(0x55)
        go_on(live, window, held=held)
        assert not window.is_open
        writer.check()
        window.release()
        check_returned(area)
        assert area._pool.made_bytes <= first_bytes + buffer_bytes
        if copying:
            assert live.copies_asked == sum(spec.lifetime != "micro" and spec.size_bytes > 0 for spec in live.specs)
        if kind == "settled":  # what has been written is read in place
            assert window.cost.copied_bytes + window.cost.fenced_bytes <= bytes_in(live, "micro", "cycle")
    assert (stepped.waits > 0) == (buffer_bytes != PLENTY)


def test_demoted_leaf_leaves_the_frozen_shard():
    live, area = Live(*EVERYTHING), StagingArea(PLENTY)
    for demoted in ([], ["f.large"], []):
        window = area.open(live.capture(), SaveCost(), Handling(demoted=frozenset(demoted)))
        window.release()
        frozen = {leaf.name for shard in window.shards if shard.frozen for leaf in shard.leaves}
        assert frozen == FROZEN_NAMES - set(demoted)


@pytest.mark.parametrize("where", ["halfway", "after"])
def test_fence_during_writer_copy_discards_it(monkeypatch, where):
    discarded = []

    def run(copies):
        live, window, _, writer = begun(Live(*EVERYTHING), StagingArea(PLENTY))
        copies.act = lambda: go_on(live, window)
        while not writer.done and not copies.acted:
            writer.read(17 if where == "halfway" else 64)
        discarded.append(window.cost.fenced_bytes > 0)
        writer.check()
        window.release()

    at_each_copy(monkeypatch, where, run, more_than=10)
    assert sum(discarded) > 5
    now = [0.0]

    def run_given_up(copies):
        area = StagingArea(ONE_BUFFER, lambda: now[0], is_remote=True)
        live, window, stepped, writer = begun(Live(*CYCLE), area)

        def wait_in_vain():
            now[0] += 70.0
            return False

        stepped.while_waiting = wait_in_vain
        copies.act, copies.counts = lambda: go_on(live, window), lambda: writer.reading
        with contextlib.suppress(StorageError):
            while not writer.done:
                writer.read(17)
        assert all(its.startswith(found) for its, found in zip(writer.expected, writer.found, strict=True))
        window.release()

    at_each_copy(monkeypatch, where, run_given_up, more_than=10)


@pytest.mark.parametrize(
    ("where", "first", "meanwhile", "buffer_bytes"),
    [
        *(("halfway", 0, 1, ONE_BUFFER), ("halfway", 300, 200, PLENTY)),
        *(("after", 300, 64, ONE_BUFFER), ("after", 0, 10**6, PLENTY), ("halfway", 0, 30, PLENTY)),
    ],
)
def test_writer_during_fence_copy_gets_bytes_once(monkeypatch, where, first, meanwhile, buffer_bytes):
    def run(copies):
        live, window, _, writer = begun(Live(*EVERYTHING), StagingArea(buffer_bytes))
        writer.read(first)
        copies.act, copies.counts = lambda: writer.read(meanwhile), lambda: not writer.reading
        go_on(live, window)
        writer.check()
        if first == 0:
            assert window.cost.in_place_bytes + window.cost.fenced_bytes == bytes_in(live, "cycle", "frozen")
        window.release()

    at_each_copy(monkeypatch, where, run, more_than=0 if first else 1)


@pytest.mark.parametrize(("where", "by_slices"), [("halfway", False), ("after", True)])
def test_writer_death_during_fence_copy_ends_fence(monkeypatch, by_slices, where):
    area = StagingArea(PLENTY)

    def run(copies):
        window, _ = opened(Live(*EVERYTHING), area=area, by_slices=by_slices)
        copies.act = window.release
        window.close()
        window.close()
        window.release()
        check_returned(area)

    at_each_copy(monkeypatch, where, run, more_than=10)


def test_slices_are_even_whoever_asks_for_them():
    """A thread that waits may, while training is idle: else one that waits for work would keep the save from ending."""
    window, _ = opened(Live(*TWELVE), buffer_bytes=PLENTY, by_slices=True)
    copied = []
    for micro_steps_left in (4, 3, 2, 1):
        advance = lambda left=micro_steps_left: window.advance(left)  # noqa: E731
        end_in_time(advance) if micro_steps_left % 2 else advance()
        copied.append(window.cost.fenced_bytes // ONE_BUFFER)
    assert copied == [3, 6, 9, 12]
    assert not window.is_open
    window.release()


def test_fence_waits_for_the_slice_of_another_thread(monkeypatch):
    """One thread copies at a time, and the update comes after both."""
    window, _ = opened(Live(*TWELVE), buffer_bytes=PLENTY, by_slices=True)
    copy, inside, go = window._copy_some, threading.Event(), threading.Event()
    slow = lambda *arguments: inside.set() or (go.wait(LONG_SECONDS) and copy(*arguments))  # noqa: E731
    monkeypatch.setattr(window, "_copy_some", slow)
    threads = [threading.Thread(target=act, daemon=True) for act in (partial(window.advance, 1), window.close)]
    threads[0].start()
    assert inside.wait(LONG_SECONDS)
    threads[1].start()
    threads[1].join(0.05)
    assert threads[1].is_alive(), "the fence is over beside a copy"
    go.set()
    end_in_time(*[thread.join for thread in threads])
    assert not window.is_open
    window.release()


def test_forked_child_waits_for_no_thread_of_its_parent():
    window, _ = opened(Live(*TWELVE), buffer_bytes=PLENTY, by_slices=True)
    held, go = threading.Event(), threading.Event()

    def hold():
        with window._copying, window._lock:
            held.set()
            go.wait(LONG_SECONDS)

    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(LONG_SECONDS)
    child = os.fork()
    if not child:
        signal.alarm(20)  # it ends a child that hangs
        window.advance(1)
        window.close()
        window.release()
        os._exit(int(window.is_open))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go.set()
    window.release()


STILL = [(70.0, True), (70.0, False)]


@pytest.mark.parametrize(
    ("is_remote", "waits", "given_up"),
    [
        (True, [(70.0, False), (40.0, True)] * 3, False),
        (True, [*STILL, (49.0, False), (1.0, True)], False),
        (True, [*STILL, (50.0, False)], True),
        (False, [(10.0, False)] * 360, False),
    ],
    ids=["slow", "slower", "still", "disk"],
)
def test_fence_gives_up_only_a_silent_network(is_remote, waits, given_up, caplog):
    """Each wait of the fence takes so many seconds, and the writer then reads something, or not."""
    now, left = [0.0], iter(waits)
    area = StagingArea(ONE_BUFFER, lambda: now[0], is_remote=is_remote)
    live, window, stepped, writer = begun(Live(*CYCLE), area)

    def wait():
        seconds, reads = next(left, (0.0, True))
        now[0] += seconds
        return reads and writer.read(5) > 0

    stepped.while_waiting = wait
    go_on(live, window)
    waits_text = "training waits for the checkpoint of cycle 0: the buffers (0 MiB) are full and the storage is slow"
    assert waits_text in caplog.text
    if given_up:
        with pytest.raises(StorageError, match=r"abandoned so that training could continue: .* nothing for 120 s"):
            writer.check()
    else:
        writer.check()
    window.release()


@pytest.mark.parametrize("by_slices", [False, True])
def test_memory_does_not_grow_over_many_saves(by_slices):
    area = StagingArea(4 * ONE_BUFFER)
    made = []
    for nth in range(60):
        live, window, stepped, writer = begun(Live(*EVERYTHING), area, by_slices=by_slices)
        step = writer.read_what_is_there if by_slices else writer.read
        step(nth * 21)
        stepped.while_waiting = lambda step=step, window=window: step(11) or window.release()
        go_on(live, window)
        step(nth * 7)
        window.release()
        made.append(area._pool.made_bytes)
    assert set(made) == {made[0]}


@pytest.mark.parametrize(
    ("leaves", "buffer_bytes", "is_remote", "waits"),
    [
        (LARGE, None, True, False),  # as large as the state, unless told otherwise
        (LARGE, 4 * ONE_BUFFER, True, True),
        (LARGE, None, False, True),  # a quarter of the state
        # What the save copies leaves the fence its memory: else it waited until the writer has read everything.
        (EVERYTHING, bytes_in(Live(*EVERYTHING), "cycle", "frozen") + ONE_BUFFER, False, False),
    ],
    ids=["remote", "told", "quarter", "mid-cycle"],
)
def test_buffers_decide_whether_a_fence_waits(leaves, buffer_bytes, is_remote, waits):
    area = StagingArea(buffer_bytes, is_remote=is_remote)
    live, window, stepped, writer = begun(Live(*leaves), area)
    go_on(live, window)  # nothing was read yet
    assert (stepped.waits > 0, window.cost.fence_wait_seconds > 0) == (waits, waits)
    writer.check()
    size_bytes = bytes_in(live, "micro", "cycle", "frozen")
    if buffer_bytes is None and not is_remote:
        assert size_bytes / 4 - ONE_BUFFER < area._pool.made_bytes <= size_bytes / 4


@pytest.mark.parametrize("why", ["", "little", "ended", "no thread"])
def test_memory_is_made_before_the_first_save_or_left_to_it(monkeypatch, why):
    def start(worker, real=Worker.start):
        if why == "no thread":
            raise NoThreadError("can't start new thread")
        real(worker)
        worker.join()

    area, cost = StagingArea(PLENTY), SaveCost()
    monkeypatch.setattr("ckptkit.snapshot.staging._FEW_BYTES", 32 << 20 if why == "little" else 1)
    monkeypatch.setattr(Worker, "start", start)
    if why == "ended":
        area.end_preparing()
    area.prepare(Live(*EVERYTHING).capture().leaves, Handling(copy_all=True))
    made_bytes = area._pool.made_bytes
    area.open(Live(*EVERYTHING).capture(), cost, Handling(copy_all=True)).release()
    assert bool(why) or cost.copied_bytes <= made_bytes < cost.copied_bytes + ONE_BUFFER
    assert not why or made_bytes == 0


class Copying:
    def __init__(self, act) -> None:
        self.frombuffer, self.uint8, self.act = np.frombuffer, np.uint8, act

    def copyto(self, into, source) -> None:
        self.act()
        np.copyto(into, source)

    def concatenate(self, arrays, **options) -> None:
        self.act()
        np.concatenate(arrays, **options)


THREADS = 3


@pytest.mark.parametrize("many", [True, False])
def test_large_copy_is_made_in_several_threads(monkeypatch, many):
    monkeypatch.setattr("os.cpu_count", lambda: THREADS)
    monkeypatch.setattr(module, "_LANES_FROM_BYTES", 100 if many else 1 << 20)
    together, seen = threading.Barrier(THREADS, timeout=60), set()

    def meet() -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            if many:
                together.wait()  # breaks unless all of them copy

    monkeypatch.setattr(module, "np", Copying(meet))
    live, window, _, writer = begun(Live(*MICRO), StagingArea(PLENTY), copy_all=True)
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
        area.open(Live(*MICRO).capture(), SaveCost(), Handling(copy_all=True))
    monkeypatch.undo()
    begun(Live(*MICRO), area, copy_all=True)[3].check()


def test_copies_that_looking_makes_are_in_memory_one_at_a_time(monkeypatch):
    """On an accelerator, all of them would be a second state on the host."""
    alive: weakref.WeakValueDictionary = weakref.WeakValueDictionary()
    most = []

    class Copied(np.ndarray):
        pass

    def source(size: int):
        copy = np.full(size, size, np.uint8).view(Copied)
        alive[size] = copy
        most.append(len(alive))
        return copy

    sizes = [200, 210, 220, 230]
    leaves = [Leaf(LeafSpec(f"w.{size}", "weights", "cycle", "U8", (size,)), partial(source, size)) for size in sizes]
    capture = Live(*MICRO).capture()
    window = StagingArea(1 << 20).open(
        Capture(capture.progress, tuple(leaves), {}), SaveCost(), Handling(copy_all=True)
    )
    assert len(most) == len(sizes)
    assert max(most) <= 2  # the one before, until the next one takes its name
    assert len(alive) == 0
    window.release()


@pytest.mark.parametrize(
    ("buffer_bytes", "steps", "handling"),
    [
        *((1, 0, {}), (2 * ONE_BUFFER, 2, {}), (1, 2, {"by_slices": True}), (2 * ONE_BUFFER, 0, {"by_slices": True})),
        # One frozen leaf was demoted, so that the other, which counts as written, goes into a new file.
        (ONE_BUFFER, 0, {"by_slices": True, "settled": FROZEN_NAMES, "demoted": frozenset({"f.small"})}),
    ],
)
def test_fence_and_writer_never_deadlock(buffer_bytes, steps, handling):
    """What the save itself copied fills the buffers, and is read last of all."""
    live = Live(*EVERYTHING)
    area = StagingArea(buffer_bytes)
    window = area.open(live.capture(), SaveCost(), Handling(**handling))
    copied_bytes = area._pool.made_bytes
    writer = Writer(window, live)

    def training() -> None:
        for left in range(steps, 0, -1):
            live.scribble("micro")
            window.advance(left)
        go_on(live, window)

    end_in_time(lambda: writer.read(1 << 60), training)
    writer.check()
    window.release()
    frozen_bytes = bytes_in(live, "frozen") if handling else 0
    assert area._pool.made_bytes <= copied_bytes + max(buffer_bytes, ONE_BUFFER) + frozen_bytes + ONE_BUFFER
