"""Whatever the writer has read when training goes on, the bytes that it gets are those of the capture."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.live import SMALL_BUFFER_BYTES, Live, Writer, cuts, opened
from unit.snapshot.live_copies import LONG_SECONDS, ONE_BUFFER, PLENTY, at_each_copy, check_returned, end_in_time, go_on

from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import DTYPES, Lifetime, Role
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.errors import StorageError
from ckptkit.snapshot import Handling, StagingArea

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
EVERY_DTYPE: list[Described] = [
    (f"{lifetime}.{dtype}.{size}", "weights", lifetime, dtype, shape)
    for dtype in DTYPES
    for lifetime in ("cycle", "micro")
    for size, shape in (("none", (0,)), ("scalar", ()), ("odd", (3,)), ("large", (5, 7)))
]
LARGE: list[Described] = [(f"w.{n}", "weights", "cycle", "F32", (100 + n,)) for n in range(40)]
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
    "three buffers": (EVERYTHING, 100, 3 * ONE_BUFFER, {}),
    "dtypes": (EVERY_DTYPE, 40, PLENTY, {}),
    "slices": (EVERYTHING, 60, PLENTY, {"by_slices": True}),
    "slices of dtypes": (EVERY_DTYPE, 20, PLENTY, {"by_slices": True}),
    "slices of copies": (EVERYTHING, 60, PLENTY, {}),  # as on an accelerator, where looking copies
    "settled": (EVERYTHING, 30, PLENTY, {"settled": FROZEN_NAMES}),
    "settled slices": (EVERYTHING, 30, PLENTY, {"settled": FROZEN_NAMES, "by_slices": True}),
    "settled, all copied": (EVERYTHING, 10, PLENTY, {"settled": FROZEN_NAMES, "copy_all": True}),
    "demoted": (EVERYTHING, 30, PLENTY, {"settled": FROZEN_NAMES, "demoted": frozenset({"f.large"})}),
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
        if kind == "demoted":
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


def test_writer_asks_for_no_copy_itself():
    """Where looking at memory copies it, only the training thread may look, whatever never changes."""
    for settled in (FROZEN_NAMES, frozenset()):
        live = Live(*CYCLE, *FROZEN, copying=True)
        window, _ = opened(live, buffer_bytes=PLENTY, settled=settled)
        asked = live.copies_asked
        writer = Writer(window, live, settled=bool(settled))
        writer.read_what_is_there()
        assert live.copies_asked == asked
        window.close()
        writer.check()
        window.release()


@pytest.mark.parametrize("by_slices", [False, True])
def test_demoted_leaf_is_copied_like_changing_ones(by_slices):
    demoted = frozenset({"f.large"})
    for cut in all_cuts(EVERYTHING, 30):
        live = Live(*EVERYTHING)
        handling = {"settled": FROZEN_NAMES, "demoted": demoted, "by_slices": by_slices}
        window, _ = opened(live, buffer_bytes=PLENTY, **handling)
        writer = Writer(window, live)
        writer.read_what_is_there(cut) if by_slices else writer.read(cut)
        bits = live.memory["f.large"].view(np.uint8)
        bits ^= np.uint8(0x55)
        go_on(live, window, held=["frozen"])
        writer.check()
        window.release()


def test_demoted_leaf_leaves_the_frozen_shard():
    live, area = Live(*EVERYTHING), StagingArea(PLENTY)
    for demoted in ([], ["f.large"], []):
        window = area.open(live.capture(), SaveCost(), Handling(demoted=frozenset(demoted)))
        window.release()
        frozen = {leaf.name for shard in window.shards if shard.frozen for leaf in shard.leaves}
        assert frozen == FROZEN_NAMES - set(demoted)


# In the middle of a copy


@pytest.mark.parametrize("where", ["halfway", "after"])
def test_fence_during_writer_copy_discards_it(monkeypatch, where):
    thrown_away = []

    def run(copies):
        live = Live(*EVERYTHING)
        window, _ = opened(live, buffer_bytes=PLENTY)
        writer = Writer(window, live)
        copies.act = lambda: go_on(live, window)
        while not writer.done and not copies.acted:
            writer.read(17 if where == "halfway" else 64)
        thrown_away.append(window.cost.fenced_bytes > 0)
        writer.check()
        window.release()

    at_each_copy(monkeypatch, where, run, more_than=10)
    assert sum(thrown_away) > 5


@pytest.mark.parametrize(
    ("where", "first", "meanwhile", "buffer_bytes"),
    [
        *(("halfway", 0, 1, ONE_BUFFER), ("halfway", 300, 200, PLENTY)),
        *(("after", 300, 64, ONE_BUFFER), ("after", 0, 10**6, PLENTY), ("halfway", 0, 30, PLENTY)),
    ],
)
def test_writer_during_fence_copy_gets_bytes_once(monkeypatch, where, first, meanwhile, buffer_bytes):
    def run(copies):
        live = Live(*EVERYTHING)
        window, stepped = opened(live, buffer_bytes=buffer_bytes)
        writer = Writer(window, live)
        writer.read(first)
        stepped.while_waiting = lambda: writer.read(5)
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
    copy, inside, go, copying, most = window._copy_some, threading.Event(), threading.Event(), [], []

    def slow(*arguments, **options):
        copying.append(threading.current_thread())
        most.append(len({*copying}))
        inside.set()
        go.wait(LONG_SECONDS)
        try:
            return copy(*arguments, **options)
        finally:
            copying.remove(threading.current_thread())

    monkeypatch.setattr(window, "_copy_some", slow)
    helper = threading.Thread(target=window.advance, args=(1,), daemon=True)
    helper.start()
    assert inside.wait(LONG_SECONDS)
    fence = threading.Thread(target=window.close, daemon=True)
    fence.start()
    fence.join(0.05)
    assert fence.is_alive(), "the fence is over beside a copy"
    go.set()
    for thread in (helper, fence):
        thread.join(LONG_SECONDS)
        assert not thread.is_alive()
    assert max(most) == 1
    assert not window.is_open
    window.release()


# A writer that is slow, or that ends, or a training thread


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
    live, now, left = Live(*CYCLE), [0.0], iter(waits)
    window, stepped = opened(live, area=StagingArea(ONE_BUFFER, lambda: now[0], is_remote=is_remote))
    writer = Writer(window, live)

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


# Memory


@pytest.mark.parametrize("by_slices", [False, True])
def test_memory_does_not_grow_over_many_saves(by_slices):
    area = StagingArea(4 * ONE_BUFFER)
    made = []
    for nth in range(60):
        live = Live(*EVERYTHING)
        window, stepped = opened(live, area=area, by_slices=by_slices)
        writer = Writer(window, live)
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
    live, area = Live(*leaves), StagingArea(buffer_bytes, is_remote=is_remote)
    window, stepped = opened(live, area=area)
    writer = Writer(window, live)
    stepped.while_waiting = lambda: writer.read(5)
    go_on(live, window)  # nothing was read yet
    assert (stepped.waits > 0, window.cost.fence_wait_seconds > 0) == (waits, waits)
    writer.check()
    size_bytes = bytes_in(live, "micro", "cycle", "frozen")
    if buffer_bytes is None and not is_remote:
        assert size_bytes / 4 - ONE_BUFFER < area._pool.made_bytes <= size_bytes / 4


def prepare(area, handling, *, few_bytes, monkeypatch) -> int:
    monkeypatch.setattr("ckptkit.snapshot.staging._FEW_BYTES", few_bytes)
    area.prepare(Live(*EVERYTHING).capture().leaves, handling)
    for thread in threading.enumerate():
        if thread.name == "ckptkit-memory":
            thread.join()
    return area._pool.made_bytes


def test_memory_that_is_made_before_is_all_that_a_save_fills(monkeypatch):
    for handling in (Handling(), Handling(copy_all=True)):
        area, cost = StagingArea(PLENTY), SaveCost()
        made = prepare(area, handling, few_bytes=1, monkeypatch=monkeypatch)
        window = area.open(Live(*EVERYTHING).capture(), cost, handling)
        assert 0 < cost.copied_bytes <= made < cost.copied_bytes + ONE_BUFFER
        assert area._pool.made_bytes <= made + 2 * ONE_BUFFER  # for the gaps between dtypes
        window.release()


@pytest.mark.parametrize("why", ["little", "ended", "no thread"])
def test_memory_may_be_left_to_the_first_save(monkeypatch, why):
    def refuse(worker):
        raise NoThreadError("can't start new thread")

    area = StagingArea(PLENTY)
    if why == "ended":
        area.end_preparing()
    if why == "no thread":
        monkeypatch.setattr(Worker, "start", refuse)
    few_bytes = 32 << 20 if why == "little" else 1
    assert prepare(area, Handling(copy_all=True), few_bytes=few_bytes, monkeypatch=monkeypatch) == 0


# Real threads, and anything in any order


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


class Windows(RuleBasedStateMachine):
    """One manager's windows, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        for module in ("buffers", "staging", "window"):
            self._patch.setattr(f"ckptkit.snapshot.{module}.BUFFER_BYTES", SMALL_BUFFER_BYTES)
        self.writer = None

    def teardown(self) -> None:
        self._patch.undo()

    @initialize(buffer_bytes=st.sampled_from([1, 2 * ONE_BUFFER, PLENTY]))
    def manager(self, buffer_bytes) -> None:
        self.area = StagingArea(buffer_bytes)
        self.settled = frozenset()

    @precondition(lambda self: self.writer is None)
    @rule(by_slices=st.booleans(), copy_all=st.booleans(), leaves=st.sets(st.sampled_from(EVERYTHING), min_size=1))
    def save(self, by_slices, copy_all, leaves) -> None:
        self.live = Live(*sorted(leaves))
        names = frozenset(name for name, _, lifetime, *_ in leaves if lifetime == "frozen")
        held = bool(names) and names == self.settled
        self.settled = names
        self.window, self.stepped = opened(
            self.live, area=self.area, by_slices=by_slices, copy_all=copy_all, settled=names if held else frozenset()
        )
        self.writer = Writer(self.window, self.live, settled=held)
        self.held = ["frozen"] if held else []
        self.stepped.while_waiting = self._while_waiting

    def _while_waiting(self) -> None:
        # A fence that waits in vain for a writer that waits for slices is a test of real threads.
        if not self._read(9):
            self.window.release()
            self.writer = None

    def _read(self, count) -> int:
        return self.writer.read_what_is_there(count) if self.window.by_slices else self.writer.read(count)

    @precondition(lambda self: self.writer is not None)
    @rule(count=st.integers(1, 300))
    def read(self, count) -> None:
        self._read(count)

    @precondition(lambda self: self.writer is not None)
    @rule(left=st.integers(0, 4))
    def micro_step(self, left) -> None:
        self.live.scribble("micro")
        self.window.advance(left)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def update(self) -> None:
        go_on(self.live, self.window, held=self.held)

    @precondition(lambda self: self.writer is not None)
    @rule(whole=st.booleans())
    def end(self, whole) -> None:
        if whole:
            if self.window.by_slices:
                self.window.close()
            if self.writer is None:
                return
            self.writer.check()
        self.window.release()
        self.writer = None

    @invariant()
    def what_was_read_is_what_was_captured(self) -> None:
        for found, expected in zip(self.writer.found, self.writer.expected, strict=True) if self.writer else ():
            assert expected.startswith(bytes(found))

    @invariant()
    def no_buffer_is_lost(self) -> None:
        if self.writer is None and hasattr(self, "area"):
            check_returned(self.area)


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
