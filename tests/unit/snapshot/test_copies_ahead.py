"""What a thread copies ahead of the fence is as it was at the capture, wherever writer, fence and thread stand."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from support.live import SMALL_BUFFER_BYTES, Live, Stepped, Writer, cuts, opened

from ckptkit.core.save_report import SaveCost
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.snapshot import Handling, StagingArea, staging
from ckptkit.snapshot.window import WindowPace

ONE_BUFFER = SMALL_BUFFER_BYTES
PLENTY = 1 << 20
LEAVES = [
    ("w.large", "weights", "cycle", "F32", (67,)),  # several buffers, and no multiple of one
    ("w.one", "weights", "cycle", "U8", (1,)),
    ("w.bytes", "weights", "cycle", "I8", (3, 43)),
    ("m.exact", "optimizer", "cycle", "F64", (16,)),  # two buffers exactly
    ("m.none", "optimizer", "cycle", "F32", (0, 3)),
    ("a.large", "accumulators", "micro", "F32", (41,)),
]
CYCLE_BYTES = sum(
    np.prod(shape) * int(dtype[1:]) // 8 for _, _, lifetime, dtype, shape in LEAVES if lifetime != "micro"
)


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    for module in ("buffers", "staging", "window"):
        monkeypatch.setattr(f"ckptkit.snapshot.{module}.BUFFER_BYTES", SMALL_BUFFER_BYTES)
    monkeypatch.setattr("ckptkit.snapshot.window._UNASKED", 1)


def copy_ahead(window, size_bytes=PLENTY) -> None:
    """What the thread does, in this one."""
    window.ahead.lacking_bytes = size_bytes
    window.ahead.is_copying = True
    window.ahead.copy()
    window.ahead.is_copying = False


def go_on(live, window) -> None:
    """One micro-step, then the fence, then the update."""
    live.scribble("micro")
    window.close()
    live.scribble("cycle")


def check_returned(area) -> None:
    free = area._pool._free
    assert len({id(one) for one in free}) == len(free), "a buffer is handed out twice"
    assert len(free) * SMALL_BUFFER_BYTES == area._pool.made_bytes, "a buffer is lost"


def ahead(window):
    """Return what tells whether copies are ahead of the window's fence."""
    return lambda: getattr(window.ahead, "is_copying", False)


class During:
    """`np` of the window's module; others act before, halfway through or after its ``nth`` copy that counts."""

    def __init__(self, monkeypatch, nth, act, *, where, counts) -> None:
        self.frombuffer, self.uint8 = np.frombuffer, np.uint8
        self.acted = False
        self.copies = 0
        self._nth, self._act, self._where, self._counts = nth, act, where, counts
        monkeypatch.setattr("ckptkit.snapshot.window.np", self)

    def copyto(self, into, source) -> None:
        counts = self._counts()
        self.copies += counts
        if self.acted or not counts or self.copies != self._nth:
            np.copyto(into, source)
            return
        half = {"before": 0, "halfway": len(into) // 2, "after": len(into)}[self._where]
        np.copyto(into[:half], source[:half])
        self.acted = True
        self._act()
        np.copyto(into[half:], source[half:])


@pytest.mark.parametrize("ahead_bytes", [1, ONE_BUFFER, 150, PLENTY])
@pytest.mark.parametrize("buffer_bytes", [ONE_BUFFER, 3 * ONE_BUFFER, PLENTY])
def test_copies_ahead_at_any_place_tear_nothing(buffer_bytes, ahead_bytes):
    area = StagingArea(buffer_bytes)
    places = list(cuts(Writer(opened(Live(*LEAVES), area=area)[0], Live(*LEAVES))))
    copied = 0
    for read_before in places[::3]:
        for read_between in (0, 90, PLENTY):
            live = Live(*LEAVES)
            window, stepped = opened(live, area=area)
            writer = Writer(window, live)
            writer.read(read_before)
            copy_ahead(window, ahead_bytes)
            copied += window.cost.fenced_bytes
            assert window.cost.fenced_bytes <= ahead_bytes
            writer.read(read_between)
            stepped.while_waiting = lambda writer=writer: writer.read(5)
            go_on(live, window)
            writer.check()
            assert window.cost.in_place_bytes + window.cost.fenced_bytes == CYCLE_BYTES
            window.release()
            check_returned(area)
    assert copied > 0


def test_fence_has_nothing_left_to_copy():
    live = Live(*LEAVES)
    window, _ = opened(live, buffer_bytes=PLENTY)
    writer = Writer(window, live)
    copy_ahead(window)
    assert window.cost.fenced_bytes == CYCLE_BYTES
    assert not window.is_open
    go_on(live, window)
    writer.check()
    assert window.cost.in_place_bytes == 0


@pytest.mark.parametrize("where", ["before", "halfway", "after"])
@pytest.mark.parametrize("read_before", [0, 90, 300])
def test_fence_during_copy_ahead_discards_it(monkeypatch, where, read_before):
    area = StagingArea(PLENTY)
    nth = 0
    while True:
        nth += 1
        live = Live(*LEAVES)
        window, _ = opened(live, area=area)
        writer = Writer(window, live)
        writer.read(read_before)
        during = During(
            monkeypatch, nth, lambda live=live, window=window: go_on(live, window), where=where, counts=ahead(window)
        )
        copy_ahead(window)
        if not during.acted:
            break
        writer.check()  # what was copied after the update is not among it
        window.release()
        check_returned(area)
    assert nth > 3


@pytest.mark.parametrize("where", ["before", "halfway", "after"])
@pytest.mark.parametrize("meanwhile", [1, 64, 200, PLENTY])
@pytest.mark.parametrize("buffer_bytes", [ONE_BUFFER, PLENTY])
def test_writer_during_copy_ahead_gets_bytes_once(monkeypatch, where, meanwhile, buffer_bytes):
    area = StagingArea(buffer_bytes)
    nth = 0
    while True:
        nth += 1
        live = Live(*LEAVES)
        window, stepped = opened(live, area=area)
        writer = Writer(window, live)
        during = During(
            monkeypatch, nth, lambda writer=writer: writer.read(meanwhile), where=where, counts=ahead(window)
        )
        copy_ahead(window)
        stepped.while_waiting = lambda writer=writer: writer.read(5)
        go_on(live, window)
        writer.check()
        assert window.cost.in_place_bytes + window.cost.fenced_bytes == CYCLE_BYTES
        window.release()
        check_returned(area)
        if not during.acted:
            break
    assert nth > 1


@pytest.mark.parametrize("where", ["before", "halfway", "after"])
@pytest.mark.parametrize("of", ["writer", "fence"])
def test_copy_ahead_during_other_copies_tears_nothing(monkeypatch, where, of):
    area = StagingArea(PLENTY)
    nth = 0
    while True:
        nth += 1
        live = Live(*LEAVES)
        window, _ = opened(live, area=area)
        writer = Writer(window, live)
        during = During(
            monkeypatch,
            nth,
            lambda window=window: copy_ahead(window, 200),
            where=where,
            counts=lambda writer=writer: writer.reading == (of == "writer"),
        )
        writer.read(250)
        go_on(live, window)
        writer.check()
        window.release()
        check_returned(area)
        if not during.acted:
            break
    assert nth > 4


@pytest.mark.parametrize("where", ["before", "halfway", "after"])
def test_buffer_of_a_copy_under_way_is_given_to_no_later_save(monkeypatch, where):
    """A thread of the lowest priority may still be copying when the save has ended and the next one begins."""
    area = StagingArea(PLENTY)
    nth = 0
    while True:
        nth += 1
        first, second = Live(*LEAVES), Live(*LEAVES)
        second.scribble("micro", "cycle")
        window, _ = opened(first, area=area)
        later, made_bytes = [], []

        def next_save(window=window, second=second, later=later, made_bytes=made_bytes):
            made_bytes.append(area._pool.made_bytes)
            window.release()
            next_window, _ = opened(second, area=area)
            later.append((next_window, Writer(next_window, second)))
            next_window.close()

        during = During(monkeypatch, nth, next_save, where=where, counts=ahead(window))
        copy_ahead(window)
        if not during.acted:
            break
        ((next_window, writer),) = later
        second.scribble("micro", "cycle")
        writer.check()
        next_window.release()
        check_returned(area)
        assert area._pool.made_bytes >= made_bytes[0], "the buffer is lost"
    assert nth > 4


def test_threads_tear_nothing():
    """As it is used, with the orders that the scheduler brings."""
    area = StagingArea(5 * ONE_BUFFER)
    kinds = set()
    for turn in range(150):
        live = Live(*LEAVES)
        window = area.open(live.capture(), SaveCost(), Handling())
        writer = Writer(window, live)
        window.ahead.lacking_bytes = (100, 300, PLENTY)[turn % 3]
        window.ahead.start()
        reader = threading.Thread(target=writer.read, args=(PLENTY,))
        reader.start()
        go_on(live, window)
        reader.join(60)
        writer.check()
        kinds.add((window.cost.in_place_bytes > 0, window.cost.fenced_bytes > 0))
        window.release()
    assert kinds


# How much is copied ahead, and into what


def paced(area, clock, *, seconds, read) -> None:
    """Let a window go by in which the writer reads ``read`` bytes in ``seconds``."""
    live = Live(*LEAVES)
    window, stepped = opened(live, area=area)
    writer = Writer(window, live)
    writer.read(read)
    clock.now += seconds
    stepped.while_waiting = lambda: writer.read(5)
    window.close()
    live.scribble("micro", "cycle")
    writer.check()
    window.release()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def lacking_next(area, **handling) -> int:
    live = Live(*LEAVES)
    window, stepped = opened(live, area=area, **handling)
    writer = Writer(window, live)
    stepped.while_waiting = lambda: writer.read(5)
    window.close()
    writer.check()
    window.release()
    return window.ahead.lacking_bytes


def test_first_window_copies_nothing_ahead():
    assert lacking_next(StagingArea(PLENTY)) == 0


def test_window_that_was_too_short_makes_the_next_copy_ahead():
    clock = Clock()
    area = StagingArea(PLENTY, clock)
    paced(area, clock, seconds=1.0, read=0)
    assert lacking_next(area) == CYCLE_BYTES - CYCLE_BYTES // 16  # nothing was read in time


def test_slow_hour_is_over_once_the_writer_is_fast_again():
    """Though everything is copied before the writer comes: it reads a little in place."""
    clock = Clock()
    area = StagingArea(PLENTY, clock)
    paced(area, clock, seconds=1.0, read=0)
    live = Live(*LEAVES)
    window, _ = opened(live, area=area)
    window.ahead.copy()
    clock.now += 0.001
    writer = Writer(window, live)
    writer.read(PLENTY)
    clock.now += 10.0
    window.close()
    writer.check()
    window.release()
    assert lacking_next(area) == 0


def test_memory_of_a_slow_hour_goes_back():
    clock = Clock()
    area = StagingArea(None, clock, free_bytes=lambda: 1 << 30)

    def fast() -> None:
        live = Live(*LEAVES)
        window, _ = opened(live, area=area)
        clock.now += 0.001
        writer = Writer(window, live)
        writer.read(PLENTY)
        clock.now += 10.0
        window.close()
        writer.check()
        window.release()

    paced(area, clock, seconds=1.0, read=0)
    usual = area._pool.made_bytes
    live = Live(*LEAVES)
    window, stepped = opened(live, area=area)
    window.ahead.copy()
    stepped.while_waiting = lambda: writer.read(5)
    writer = Writer(window, live)
    go_on(live, window)
    writer.check()
    window.release()
    grown = area._pool.made_bytes
    assert grown > usual
    for _ in range(staging._WINDOWS_KEPT):
        fast()
        assert area._pool.made_bytes == grown  # the next one may be slow again
    fast()
    assert area._pool.made_bytes <= usual + ONE_BUFFER
    check_returned(area)


def test_pace_of_reading_and_training_decides():
    pace = WindowPace(bytes_per_second=100.0, micro_step_seconds=2.0)
    assert pace.lacking_bytes(1000, 5) == 1000 - int(0.8 * 1000)
    assert pace.lacking_bytes(1000, 1) == 1000 - int(0.8 * 200)
    assert pace.lacking_bytes(1000, 100) == 0


def test_writer_that_was_done_in_time_needs_nothing_ahead():
    clock = Clock()
    area = StagingArea(PLENTY, clock)
    live = Live(*LEAVES)
    window, _ = opened(live, area=area)
    clock.now += 1.0
    Writer(window, live).check()
    window.release()  # the save is complete
    clock.now += 9.0
    window.close()
    assert lacking_next(area) == 0


def test_failed_save_tells_nothing():
    clock = Clock()
    area = StagingArea(PLENTY, clock)
    paced(area, clock, seconds=1.0, read=0)
    before = lacking_next(area)
    window, _ = opened(Live(*LEAVES), area=area)
    clock.now += 50.0
    window.release()
    window.close()
    assert window.ahead.pace is None
    assert lacking_next(area) == before


@pytest.mark.parametrize(
    ("given", "free", "ranks", "more"),
    [
        (None, 1 << 30, 1, True),
        (None, None, 1, False),  # unknown
        (None, 100, 1, False),
        (None, 1000, 8, False),  # all ranks may be on this machine
        (None, 1000, 1, True),
        (2 * ONE_BUFFER, 1 << 30, 1, False),
    ],
)
def test_memory_beyond_a_quarter_is_taken_where_it_is_free(given, free, ranks, more):
    clock = Clock()
    area = StagingArea(given, clock, free_bytes=lambda: free)
    paced(area, clock, seconds=1.0, read=0)
    usual_bytes = max(area._pool.made_bytes, area._pool.limit_bytes)
    quarter_of_all = sum(spec.size_bytes for spec in Live(*LEAVES).specs) // 4
    assert given is not None or usual_bytes < 3 * ONE_BUFFER + quarter_of_all + ONE_BUFFER
    live = Live(*LEAVES)
    window, stepped = opened(live, area=area, ranks=ranks)
    writer = Writer(window, live)
    window.ahead.copy()
    stepped.while_waiting = lambda: writer.read(5)
    go_on(live, window)
    writer.check()
    window.release()
    more_bytes = area._pool.made_bytes - usual_bytes
    assert (more_bytes > 0) == more
    assert more_bytes <= (free or 0) // (2 * ranks)
    if free == 1 << 30 and more:  # and then no fence waits
        live = Live(*LEAVES)
        window, stepped = opened(live, area=area)
        stepped.waits = 0
        writer = Writer(window, live)
        window.ahead.copy()
        stepped.while_waiting = lambda: writer.read(CYCLE_BYTES // 16 + 100)
        go_on(live, window)
        assert stepped.waits == 0
        writer.check()
        window.release()


def test_without_a_thread_the_fence_copies(monkeypatch):
    def refuse(self):
        raise NoThreadError("no more threads")

    live = Live(*LEAVES)
    window, _ = opened(live, buffer_bytes=PLENTY)
    writer = Writer(window, live)
    monkeypatch.setattr(Worker, "start", refuse)
    window.ahead.lacking_bytes = PLENTY
    window.ahead.start()
    go_on(live, window)
    writer.check()


@pytest.mark.parametrize("handling", [{"by_slices": True}, {"copy_all": True}])
def test_only_memory_that_is_read_in_place_is_copied_ahead(handling):
    clock = Clock()
    area = StagingArea(PLENTY, clock)
    paced(area, clock, seconds=1.0, read=0)
    window, _ = opened(Live(*LEAVES), area=area, **handling)
    assert window.ahead.lacking_bytes == 0
    assert isinstance(area._pool.changed, Stepped)


def test_fence_that_waited_for_a_buffer_gets_it(monkeypatch):
    """The thread may have seen no fence, and take a buffer only once the fence has waited for that one."""
    area = StagingArea(ONE_BUFFER)
    live = Live(("w.a.means", "weights", "micro", "F32", (41,)), *LEAVES)  # their buffers come back first
    window, stepped = opened(live, area=area)
    writer = Writer(window, live)
    take, taken, tries = area._pool.take, [], []

    def meanwhile(**options):
        if stepped.waits and area._pool.has_free and not tries:
            tries.append(threading.Thread(target=lambda: taken.append(take()), daemon=True))
            tries[0].start()
            tries[0].join(0.2)  # in vain while the fence holds the lock
        return take(**options)

    stepped.while_waiting = lambda: writer.read(5)
    monkeypatch.setattr(area._pool, "take", meanwhile)
    go_on(live, window)
    writer.check()
    assert tries


def test_full_buffer_of_a_save_that_ends_is_kept(monkeypatch):
    area = StagingArea(PLENTY)
    live = Live(*LEAVES)
    window, _ = opened(live, area=area)
    copied = window.ahead._copy_some

    def ends_after(extent, at_most):
        count = copied(extent, at_most)
        if window.ahead._filling.filled_bytes == ONE_BUFFER:
            window.release()
        return count

    monkeypatch.setattr(window.ahead, "_copy_some", ends_after)
    made_bytes = area._pool.made_bytes
    copy_ahead(window)
    assert area._pool.made_bytes > made_bytes, "the buffer is lost"
    check_returned(area)


def test_jobs_that_share_a_machine_leave_half_of_its_free_memory():
    """Each would find the same memory free, and a state that all lack is more than there is."""
    clock = Clock()
    jobs, all_bytes = 8, 6 * CYCLE_BYTES
    together = threading.Barrier(jobs, timeout=60)
    areas = []
    asked = set()

    def free() -> int:
        free_bytes = all_bytes - sum(one._pool.made_bytes for one in areas)
        if threading.get_ident() not in asked:
            asked.add(threading.get_ident())
            together.wait()  # none has taken any yet
        return free_bytes

    areas += [StagingArea(None, clock, free_bytes=free) for _ in range(jobs)]
    for area in areas:
        paced(area, clock, seconds=1.0, read=0)
    made_bytes = sum(one._pool.made_bytes for one in areas)
    assert not asked, "the training thread asked, too"
    windows = [opened(Live(*LEAVES), area=area)[0] for area in areas]
    threads = [threading.Thread(target=window.ahead.copy) for window in windows]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    taken_bytes = sum(one._pool.made_bytes for one in areas) - made_bytes
    assert 0 < taken_bytes <= (all_bytes - made_bytes) // 2 + 2 * jobs * ONE_BUFFER


@pytest.mark.parametrize("error", [MemoryError("none"), OSError(12, "none")])
def test_memory_that_is_refused_ends_the_copy(monkeypatch, error):
    live = Live(*LEAVES)
    window, _ = opened(live, buffer_bytes=PLENTY)
    writer = Writer(window, live)

    def refuse():
        raise error

    with monkeypatch.context() as refused:
        refused.setattr("ckptkit.snapshot.buffers.Buffer", refuse)
        copy_ahead(window)
    go_on(live, window)
    writer.check()
