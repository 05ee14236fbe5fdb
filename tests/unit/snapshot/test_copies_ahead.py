"""What a thread copies ahead of the fence is as it was at the capture, wherever writer, fence and thread stand."""

import threading

import pytest
from support.clock import Manual
from support.live import Live, cuts, let_end, opened
from unit.snapshot import live_copies
from unit.snapshot.live_copies import ONE_BUFFER, PLENTY, at_each_copy, check_returned, go_on

from ckptkit.core.worker import NoThreadError
from ckptkit.snapshot import StagingArea, staging

LEAVES = [
    ("w.large", "weights", "cycle", "F32", (67,)),  # several buffers, and no multiple of one
    ("w.one", "weights", "cycle", "U8", (1,)),
    ("w.bytes", "weights", "cycle", "I8", (3, 43)),
    ("m.exact", "optimizer", "cycle", "F64", (16,)),  # two buffers exactly
    ("m.none", "optimizer", "cycle", "F32", (0, 3)),
    ("a.large", "accumulators", "micro", "F32", (41,)),
]
CYCLE_BYTES = sum(spec.size_bytes for spec in Live(*LEAVES).specs if spec.lifetime != "micro")


def begun(area=None, *, live=None, **handling):
    return live_copies.begun(live or Live(*LEAVES), area or StagingArea(PLENTY), **handling)


def copy_ahead(window, size_bytes=PLENTY) -> None:
    window.ahead.lacking_bytes = size_bytes
    window.ahead.is_copying = True
    window.ahead.copy()
    window.ahead.is_copying = False


def check_ended(window, writer, area) -> None:
    writer.check()
    window.release()
    check_returned(area)


@pytest.mark.parametrize(
    ("buffer_bytes", "ahead_bytes"), [(ONE_BUFFER, 1), (ONE_BUFFER, PLENTY), (3 * ONE_BUFFER, 150), (PLENTY, PLENTY)]
)
def test_copies_ahead_at_any_place_tear_nothing(buffer_bytes, ahead_bytes):
    area = StagingArea(buffer_bytes)
    places = list(cuts(begun(area)[3]))
    copied = 0
    for number, read_before in enumerate(places[::3]):
        live, window, _, writer = begun(area)
        writer.read(read_before)
        copy_ahead(window, ahead_bytes)
        copied += window.cost.fenced_bytes
        assert window.cost.fenced_bytes <= ahead_bytes
        writer.read((0, 90, PLENTY)[number % 3])
        go_on(live, window)
        check_ended(window, writer, area)
        assert window.cost.in_place_bytes + window.cost.fenced_bytes == CYCLE_BYTES
    assert copied > 0


def test_thread_copies_all_that_lacks_before_the_fence():
    for lacking_bytes, copied_bytes in [(PLENTY, CYCLE_BYTES), (ONE_BUFFER - 1, 0)]:
        live, window, _, writer = begun()
        window.ahead.lacking_bytes = lacking_bytes
        window.ahead.start()
        let_end("ckptkit-ahead")
        assert window.cost.fenced_bytes == copied_bytes
        assert window.is_open == (copied_bytes == 0)
        go_on(live, window)
        writer.check()


DURING = {  # what happens during which copy: by others, at copies of whom
    "fence during copy ahead": lambda live, window, writer, size: (lambda: go_on(live, window), "ahead"),
    "writer during copy ahead": lambda live, window, writer, size: (lambda: writer.read(size), "ahead"),
    "copy ahead during writer": lambda live, window, writer, size: (lambda: copy_ahead(window, 200), "writer"),
    "copy ahead during fence": lambda live, window, writer, size: (lambda: copy_ahead(window, 200), "fence"),
}


@pytest.mark.parametrize("where", ["halfway", "after"])
@pytest.mark.parametrize(
    ("what", "first", "size", "buffer_bytes"),
    [
        *(("fence during copy ahead", first, 0, PLENTY) for first in (0, 90, 300)),
        *(("writer during copy ahead", 0, size, PLENTY) for size in (1, 64, PLENTY)),
        *(("writer during copy ahead", 0, size, ONE_BUFFER) for size in (200, PLENTY)),
        *((f"copy ahead during {who}", 250, 0, PLENTY) for who in ("writer", "fence")),
    ],
)
def test_copies_at_once_tear_nothing(monkeypatch, where, what, first, size, buffer_bytes):  # noqa: PLR0917
    area = StagingArea(buffer_bytes)

    def run(copies):
        live, window, _, writer = begun(area)
        act, of = DURING[what](live, window, writer, size)
        who = lambda: "ahead" if getattr(window.ahead, "is_copying", False) else "writer" if writer.reading else "fence"  # noqa: E731
        copies.counts = lambda: who() == of
        if of == "writer":
            copies.act = act
        writer.read(first)
        copies.act = act
        if of == "ahead":
            copy_ahead(window)
        go_on(live, window)
        check_ended(window, writer, area)
        assert window.cost.in_place_bytes + window.cost.fenced_bytes == CYCLE_BYTES

    at_each_copy(monkeypatch, where, run, more_than=1)


@pytest.mark.parametrize("where", ["halfway", "after"])
def test_buffer_of_a_copy_under_way_is_given_to_no_later_save(monkeypatch, where):
    """A thread of the lowest priority may still be copying when the save has ended and the next one begins."""
    area = StagingArea(PLENTY)

    def run(copies):
        _, window, _, _ = begun(area)
        second, later, made_bytes = Live(*LEAVES), [], []
        second.scribble("micro", "cycle")

        def next_save():
            made_bytes.append(area._pool.made_bytes)
            window.release()
            later.extend(begun(area, live=second))
            later[1].close()

        copies.act, copies.counts = next_save, lambda: getattr(window.ahead, "is_copying", False)
        copy_ahead(window)
        if not copies.acted:
            window.release()
            return
        second.scribble("micro", "cycle")
        check_ended(later[1], later[3], area)
        assert area._pool.made_bytes >= made_bytes[0], "the buffer is lost"

    at_each_copy(monkeypatch, where, run, more_than=4)


# How much is copied ahead, and into what


def ended(live, window, _, writer):
    go_on(live, window)
    writer.check()
    window.release()
    return window


def slow(area, clock) -> int:
    """Let a window go by in which the writer reads nothing in a second; return how much buffers took."""
    parts = begun(area)
    clock.now += 1.0
    ended(*parts)
    return area._pool.made_bytes


def fast(area, clock) -> int:
    """Let a window go by whose writer is done long before the fence; return how much buffers took."""
    parts = begun(area)
    parts[1].ahead.copy()
    clock.now += 0.001
    parts[3].read(PLENTY)
    clock.now += 10.0
    ended(*parts)
    return area._pool.made_bytes


def lacking_next(area) -> int:
    return ended(*begun(area)).ahead.lacking_bytes


def test_pace_of_the_windows_before_decides():
    assert lacking_next(StagingArea(PLENTY)) == 0  # the first one
    ahead = begun()[1].ahead
    for ahead._micro_steps, expected in [(1, CYCLE_BYTES - 80), (3, CYCLE_BYTES - 240), (1000, 0)]:
        ahead.expect(100.0)
        assert ahead.lacking_bytes == expected
    clock = Manual()
    area = StagingArea(PLENTY, clock)
    slow(area, clock)
    lacking_bytes = CYCLE_BYTES - CYCLE_BYTES // 16  # nothing was read in time
    assert lacking_next(area) == lacking_bytes
    for handling in ({"by_slices": True}, {"copy_all": True}):  # nothing is read in place
        assert begun(area, **handling)[1].ahead.lacking_bytes == 0
    slow(area, clock)
    window, _ = opened(Live(*LEAVES), area=area)  # a save that fails says nothing of the pace
    clock.now += 50.0
    window.release()
    assert not window.is_open
    window.close()
    assert window.ahead.pace is None
    assert lacking_next(area) == lacking_bytes
    slow(area, clock)
    fast(area, clock)  # though everything is copied before the writer comes: it reads a little in place
    assert lacking_next(area) == 0
    slow(area, clock)
    _, window, _, writer = begun(area)
    clock.now += 1.0
    writer.check()
    window.release()  # the save is complete in time
    clock.now += 9.0
    window.close()
    assert lacking_next(area) == 0


def test_memory_of_a_slow_hour_goes_back():
    clock = Manual()
    area = StagingArea(None, clock, free_bytes=lambda: 1 << 30)
    usual, parts = slow(area, clock), begun(area)
    parts[1].ahead.copy()
    ended(*parts)
    grown = area._pool.made_bytes
    assert grown > usual
    assert {fast(area, clock) for _ in range(staging._WINDOWS_KEPT)} == {grown}  # the next one may be slow again
    assert fast(area, clock) <= usual + ONE_BUFFER
    check_returned(area)


@pytest.mark.parametrize(
    ("given", "free", "ranks", "more"),
    [
        (None, 1 << 30, 1, True),
        (None, 0, 1, False),  # or unknown
        (None, 100, 1, False),
        (None, 1000, 8, False),  # all ranks may be on this machine
        (None, 1000, 1, True),
        (2 * ONE_BUFFER, 1 << 30, 1, False),
    ],
)
def test_memory_beyond_a_quarter_is_taken_where_it_is_free(given, free, ranks, more):
    clock = Manual()
    area = StagingArea(given, clock, free_bytes=lambda: free)
    slow(area, clock)
    usual_bytes = max(area._pool.made_bytes, area._pool.limit_bytes)
    quarter_of_all = sum(spec.size_bytes for spec in Live(*LEAVES).specs) // 4
    assert given is not None or usual_bytes < 3 * ONE_BUFFER + quarter_of_all + ONE_BUFFER
    parts = begun(area, ranks=ranks)
    parts[1].ahead.copy()
    ended(*parts)
    more_bytes = area._pool.made_bytes - usual_bytes
    assert (more_bytes > 0) == more
    assert more_bytes <= free // (2 * ranks)
    if free == 1 << 30 and more:  # and then no fence waits
        parts = begun(area)
        parts[2].waits = 0
        parts[1].ahead.copy()
        ended(*parts)
        assert parts[2].waits == 0


def test_without_memory_or_a_thread_the_fence_copies(monkeypatch):
    for what, error in [
        ("ckptkit.snapshot.buffers.Buffer", MemoryError("none")),
        ("ckptkit.core.worker.Worker.start", NoThreadError("no more threads")),
    ]:
        parts = begun()

        def refuse(*_, error=error):
            raise error

        ahead = parts[1].ahead
        ahead.lacking_bytes = PLENTY
        with monkeypatch.context() as refused:
            refused.setattr(what, refuse)
            ahead.start() if isinstance(error, NoThreadError) else ahead.copy()
        ended(*parts)


def test_fence_that_waited_for_a_buffer_gets_it(monkeypatch):
    """The thread may have seen no fence, and take a buffer only once the fence has waited for that one."""
    area = StagingArea(ONE_BUFFER)
    means = ("w.a.means", "weights", "micro", "F32", (41,))  # their buffers come back first
    live, window, stepped, writer = begun(area, live=Live(means, *LEAVES))
    take, tries = area._pool.take, []

    def meanwhile(**options):
        if stepped.waits and area._pool.has_free and not tries:
            tries.append(threading.Thread(target=take, daemon=True))
            tries[0].start()
            tries[0].join(0.2)  # in vain while the fence holds the lock
        return take(**options)

    monkeypatch.setattr(area._pool, "take", meanwhile)
    go_on(live, window)
    writer.check()
    assert tries
