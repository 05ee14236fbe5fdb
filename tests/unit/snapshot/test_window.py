"""Whatever the writer has read when training goes on, the bytes that it gets are those of the capture."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.live import SMALL_BUFFER_BYTES, Live, Stepped, Writer, cuts, opened

from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import DTYPES, Lifetime, Role
from ckptkit.core.worker import NoThreadError, Worker
from ckptkit.errors import StorageError
from ckptkit.snapshot import Handling, StagingArea
from ckptkit.snapshot.buffers import BufferPool

LONG_SECONDS = 10.0
ONE_BUFFER = SMALL_BUFFER_BYTES
PLENTY = 1 << 20

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
STATES = {"everything": EVERYTHING, "cycle": CYCLE, "micro": MICRO, "dtypes": EVERY_DTYPE}


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch):
    """Buffers so small that there is a border every few bytes."""
    for module in ("buffers", "staging", "window"):
        monkeypatch.setattr(f"ckptkit.snapshot.{module}.BUFFER_BYTES", SMALL_BUFFER_BYTES)


def go_on(live, window, *, held=()) -> None:
    """One micro-step, then the fence, then the update: all that training may change is changed."""
    live.scribble("micro")
    window.close()
    live.scribble("cycle", *({"frozen"} - set(held)))


def all_cuts(state, **handling) -> list[int]:
    live = Live(*STATES[state])
    window, _ = opened(live, buffer_bytes=PLENTY, **handling)
    places = list(cuts(Writer(window, live)))
    return places[:: 1 + len(places) // 200]


# The fence at every place


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("buffer_bytes", [ONE_BUFFER, 3 * ONE_BUFFER, PLENTY])
def test_a_fence_at_any_place_tears_nothing(state, buffer_bytes):
    area = StagingArea(buffer_bytes)
    copied_bytes = None
    for cut in all_cuts(state):
        live = Live(*STATES[state])
        window, stepped = opened(live, area=area)
        copied_bytes = copied_bytes or area._pool.made_bytes
        writer = Writer(window, live)
        writer.read(cut)
        stepped.while_waiting = lambda writer=writer: writer.read(5)
        go_on(live, window)
        assert not window.is_open
        writer.check()
        window.release()
        assert area._pool.made_bytes <= copied_bytes + buffer_bytes
    if buffer_bytes == ONE_BUFFER and state in ("everything", "cycle"):
        assert stepped.waits > 0


@pytest.mark.covering(2)
@pytest.mark.parametrize("copying", [False, True])
@pytest.mark.parametrize("state", ["everything", "cycle", "dtypes"])
@pytest.mark.parametrize("per_step", [1, 100, 10**6])
def test_slices_at_any_place_tear_nothing(state, copying, per_step):
    for cut in all_cuts(state, by_slices=True):
        live = Live(*STATES[state], copying=copying)
        window, _ = opened(live, buffer_bytes=PLENTY, by_slices=not copying)
        assert window.by_slices
        writer = Writer(window, live)
        writer.read_what_is_there(cut)
        for left in (2, 1):
            live.scribble("micro")
            window.advance(left)
            writer.read_what_is_there(per_step)
        go_on(live, window)
        writer.check()
        window.release()
        if copying:
            assert live.copies_asked == sum(spec.lifetime != "micro" and spec.size_bytes > 0 for spec in live.specs)


@pytest.mark.parametrize("handling", [{"copy_all": True}, {"copy_all": True, "by_slices": True}])
def test_copied_at_once_there_is_nothing_to_fence(handling):
    live = Live(*EVERYTHING)
    window, _ = opened(live, **handling)
    writer = Writer(window, live)
    assert not window.is_open
    live.scribble("micro", "cycle", "frozen")
    writer.check()
    assert window.cost.in_place_bytes == window.cost.fenced_bytes == 0
    window.release()


@pytest.mark.parametrize("by_slices", [False, True])
@pytest.mark.parametrize("copy_all", [False, True])
def test_settled_frozen_leaves_are_read_in_place(copy_all, by_slices):
    names = frozenset(name for name, *_ in FROZEN)
    for cut in all_cuts("everything"):
        live = Live(*EVERYTHING)
        window, _ = opened(live, buffer_bytes=PLENTY, settled=names, copy_all=copy_all, by_slices=by_slices)
        writer = Writer(window, live, settled=True)
        writer.read_what_is_there(cut) if by_slices else writer.read(cut)
        go_on(live, window, held=["frozen"])
        writer.check()
        frozen_bytes = sum(spec.size_bytes for spec in live.specs if spec.lifetime == "frozen")
        changing = sum(spec.size_bytes for spec in live.specs) - frozen_bytes
        assert window.cost.copied_bytes + window.cost.fenced_bytes <= changing + (frozen_bytes if by_slices else 0)
        window.release()


@pytest.mark.parametrize("settled", [True, False])
def test_writer_asks_for_no_copy_itself(settled):
    """Where looking at memory copies it, only the training thread may look, whatever never changes."""
    live = Live(*CYCLE, *FROZEN, copying=True)
    names = frozenset(name for name, *_ in FROZEN) if settled else frozenset()
    window, _ = opened(live, buffer_bytes=PLENTY, settled=names)
    asked = live.copies_asked
    writer = Writer(window, live, settled=settled)
    writer.read_what_is_there()
    assert live.copies_asked == asked
    window.close()
    writer.check()
    window.release()


@pytest.mark.parametrize("by_slices", [False, True])
def test_demoted_leaf_is_copied_like_changing_ones(by_slices):
    demoted = frozenset({"f.large"})
    for cut in all_cuts("everything"):
        live = Live(*EVERYTHING)
        window, _ = opened(
            live, buffer_bytes=PLENTY, settled=frozenset({"f.small", "f.large"}), demoted=demoted, by_slices=by_slices
        )
        writer = Writer(window, live)
        writer.read_what_is_there(cut) if by_slices else writer.read(cut)
        bits = live.memory["f.large"].view(np.uint8)
        bits ^= np.uint8(0x55)
        go_on(live, window, held=["frozen"])
        writer.check()
        window.release()


def test_demoted_leaf_leaves_the_frozen_shard():
    """By the same area that planned it as frozen before."""
    live, area = Live(*EVERYTHING), StagingArea(PLENTY)

    def frozen_names(handling: Handling) -> set[str]:
        window = area.open(live.capture(), SaveCost(), handling)
        window.release()
        return {leaf.name for shard in window.shards if shard.frozen for leaf in shard.leaves}

    assert frozen_names(Handling()) == {"f.large", "f.small"}
    assert frozen_names(Handling(demoted=frozenset({"f.large"}))) == {"f.small"}
    assert frozen_names(Handling()) == {"f.large", "f.small"}


# The fence in the middle of a copy


class CopiesWatched:
    """`np` of the window's module, whose ``copyto`` lets others act right before, halfway through or after a copy.

    The ``nth`` copy of those at which ``counts`` is true.
    """

    def __init__(self, nth: int, act, where: str, counts=lambda: True) -> None:
        self._counts = counts
        self.copies = 0
        self.acted = False
        self._nth = nth
        self._act = act
        self._where = where
        self.frombuffer = np.frombuffer
        self.uint8 = np.uint8

    def copyto(self, into, source) -> None:
        self.copies += self._counts()
        if self.acted or self.copies != self._nth:
            np.copyto(into, source)
            return
        half = len(into) // 2 if self._where == "halfway" else 0 if self._where == "before" else len(into)
        np.copyto(into[:half], source[:half])
        self.acted = True
        self._act()
        np.copyto(into[half:], source[half:])


def writers_turn(nth, writer, meanwhile, where) -> CopiesWatched:
    """The writer goes on in the middle of the ``nth`` copy of the fence."""
    return CopiesWatched(nth, lambda: writer.read(meanwhile), where, lambda: not writer.reading)


@pytest.mark.parametrize("where", ["before", "halfway", "after"])
@pytest.mark.parametrize("piece_bytes", [17, 64, 1000])
def test_fence_during_writer_copy_discards_it(monkeypatch, where, piece_bytes):
    nth = 0
    thrown_away = 0
    while True:
        nth += 1
        live = Live(*EVERYTHING)
        window, _ = opened(live, buffer_bytes=PLENTY)
        writer = Writer(window, live)
        watched = CopiesWatched(nth, lambda live=live, window=window: go_on(live, window), where)
        monkeypatch.setattr("ckptkit.snapshot.window.np", watched)
        while not writer.done and not watched.acted:
            writer.read(piece_bytes)
        if not watched.acted:
            break
        torn_if_kept = window.cost.fenced_bytes > 0
        thrown_away += torn_if_kept
        writer.check()
        window.release()
    assert nth > 10
    assert thrown_away > 5


@pytest.mark.parametrize("where", ["before", "halfway", "after"])
@pytest.mark.parametrize("meanwhile", [1, 30, 64, 200, 10**6])
@pytest.mark.parametrize("buffer_bytes", [ONE_BUFFER, PLENTY])
def test_writer_during_fence_copy_gets_bytes_once(monkeypatch, where, meanwhile, buffer_bytes):
    for first in (0, 40, 300):
        nth = 0
        while True:
            nth += 1
            live = Live(*EVERYTHING)
            window, stepped = opened(live, buffer_bytes=buffer_bytes)
            writer = Writer(window, live)
            writer.read(first)
            stepped.while_waiting = lambda writer=writer: writer.read(5)
            watched = writers_turn(nth, writer, meanwhile, where)
            monkeypatch.setattr("ckptkit.snapshot.window.np", watched)
            go_on(live, window)
            if not watched.acted:
                break
            writer.check()
            if first == 0:
                cost = window.cost
                assert cost.in_place_bytes + cost.fenced_bytes == sum(
                    spec.size_bytes for spec in live.specs if spec.lifetime != "micro"
                )
            window.release()
        assert nth > 1 or first


def test_slices_are_even_up_to_the_update():
    live = Live(("w", "weights", "cycle", "F32", (12 * ONE_BUFFER // 4,)))
    window, _ = opened(live, buffer_bytes=PLENTY, by_slices=True)
    copied = []
    for micro_steps_left in (4, 3, 2, 1):
        window.advance(micro_steps_left)
        copied.append(window.cost.fenced_bytes // ONE_BUFFER)
    assert copied == [3, 6, 9, 12]
    assert not window.is_open
    window.release()


def in_a_thread(action):
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(LONG_SECONDS)
    assert not thread.is_alive()


def test_thread_that_waits_gives_slices_while_training_is_idle():
    """Else a training thread that waits for more work, or a pool's, would keep the save from ending."""
    live = Live(("w", "weights", "cycle", "F32", (12 * ONE_BUFFER // 4,)))
    window, _ = opened(live, buffer_bytes=PLENTY, by_slices=True)
    in_a_thread(lambda: window.advance(4))
    assert window.cost.fenced_bytes == 3 * ONE_BUFFER
    in_a_thread(lambda: window.advance(1))
    assert not window.is_open
    window.release()


def test_fence_waits_for_the_slice_of_another_thread(monkeypatch):
    """One thread copies at a time, and the update comes after both."""
    live = Live(("w", "weights", "cycle", "F32", (12 * ONE_BUFFER // 4,)))
    window, _ = opened(live, buffer_bytes=PLENTY, by_slices=True)
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
    for one in (helper, fence):
        one.join(LONG_SECONDS)
        assert not one.is_alive()
    assert max(most) == 1
    assert not window.is_open
    window.release()


# A writer that is slow, or that ends, or a training thread


def waiting_for(writer, waits):
    """A clock, and what happens at each wait of the fence: after so many seconds the writer read something, or not."""
    now, left = [0.0], iter(waits)

    def wait():
        seconds, reads = next(left, (0.0, True))
        now[0] += seconds
        return writer.read(5) > 0 if reads else False

    return (lambda: now[0]), wait


@pytest.mark.parametrize(
    ("waits", "given_up"),
    [([(70.0, False), (40.0, True)] * 3, False), ([(70.0, True), (70.0, False), (70.0, False)], True)],
    ids=["slow", "still"],
)
def test_fence_gives_up_after_standstill_alone(waits, given_up):
    live = Live(*CYCLE)
    window, stepped = opened(live, buffer_bytes=ONE_BUFFER)
    window._gives_up = True  # as on a remote root
    writer = Writer(window, live)
    window._monotonic, stepped.while_waiting = waiting_for(writer, waits)
    go_on(live, window)
    if given_up:
        with pytest.raises(StorageError, match="nothing for 120 s"):
            writer.check()
    else:
        writer.check()
    window.release()


@pytest.mark.parametrize("is_remote", [True, False])
def test_only_a_remote_storage_is_given_up(is_remote):
    live = Live(*CYCLE)
    window, stepped = opened(live, area=StagingArea(ONE_BUFFER, is_remote=is_remote))
    writer = Writer(window, live)
    window._monotonic, stepped.while_waiting = waiting_for(writer, [(70.0, False), (70.0, False)])
    go_on(live, window)
    if is_remote:
        with pytest.raises(StorageError, match="nothing for 120 s"):
            writer.check()
    else:
        writer.check()
    window.release()


def test_writer_ends_after_training_thread(monkeypatch):
    """Unless somebody else gives it slices."""
    monkeypatch.setattr("ckptkit.snapshot.window._STANDSTILL_SECONDS", 0.05)
    live = Live(*CYCLE)
    made = []
    area = StagingArea(ONE_BUFFER)
    opening = (live.capture(), SaveCost(), Handling(by_slices=True))
    trainer = threading.Thread(target=lambda: made.append(area.open(*opening)))
    trainer.start()
    trainer.join()
    window = made[0]
    raised = []

    def write():
        try:
            Writer(window, live).check()
        except StorageError as error:
            raised.append(str(error))

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    writer.join(LONG_SECONDS)
    assert ["the training thread has ended" in one for one in raised] == [True]
    window.close()  # waits for nothing
    window.release()
    assert len(window._pool._free) * SMALL_BUFFER_BYTES == window._pool.made_bytes


@pytest.mark.parametrize("by_slices", [False, True])
def test_dead_writer_returns_every_buffer(by_slices):
    area = StagingArea(2 * ONE_BUFFER)
    made = set()
    for cut in [*all_cuts("everything"), *all_cuts("everything")]:
        live = Live(*EVERYTHING)
        window, stepped = opened(live, area=area, by_slices=by_slices)
        writer = Writer(window, live)
        writer.read_what_is_there(cut) if by_slices else writer.read(cut)
        stepped.while_waiting = window.release
        window.close()
        window.release()
        assert len(area._pool._free) * SMALL_BUFFER_BYTES == area._pool.made_bytes
        assert len({id(one) for one in area._pool._free}) == len(area._pool._free)
        assert not window.is_open
        made.add(area._pool.made_bytes)
    assert len(made) == 1


@pytest.mark.parametrize("where", ["before", "halfway", "after"])
@pytest.mark.parametrize("by_slices", [False, True])
def test_writer_death_during_fence_copy_ends_fence(monkeypatch, by_slices, where):
    area = StagingArea(PLENTY)
    nth = 0
    acted = True
    while acted:
        nth += 1
        live = Live(*EVERYTHING)
        window, _ = opened(live, area=area, by_slices=by_slices)
        watched = CopiesWatched(nth, window.release, where)
        monkeypatch.setattr("ckptkit.snapshot.window.np", watched)
        window.close()
        window.close()
        acted = watched.acted
        window.release()
        assert len(area._pool._free) * SMALL_BUFFER_BYTES == area._pool.made_bytes
    assert nth > 10


def test_writer_death_at_live_memory_ends_fence(monkeypatch):
    """The writer dies while the fence looks at live memory."""
    live = Live(*CYCLE)
    window, _ = opened(live)

    def dies_before_it_is_known(source):
        window.release()
        return callable(source)

    monkeypatch.setattr("ckptkit.snapshot.buffers.callable", dies_before_it_is_known, raising=False)
    window.close()
    assert not window.is_open


@pytest.mark.parametrize("by_slices", [False, True])
def test_memory_does_not_grow_over_many_saves(by_slices):
    area = StagingArea(4 * ONE_BUFFER)
    made = []
    for nth in range(100):
        live = Live(*EVERYTHING)
        window, stepped = opened(live, area=area, by_slices=by_slices)
        writer = Writer(window, live)
        step = writer.read_what_is_there if by_slices else writer.read
        step(nth * 13)
        stepped.while_waiting = lambda step=step, window=window: step(11) or window.release()
        go_on(live, window)
        step(nth * 7)
        window.release()
        made.append(area._pool.made_bytes)
    assert set(made) == {made[0]}


# Full buffers


def test_fence_waits_within_memory_limit():
    """Two files; while the fence waits the writer reads a byte at a time, and it never takes a second buffer."""
    live = Live(*CYCLE)
    area = StagingArea(ONE_BUFFER)
    window, stepped = opened(live, area=area)
    writer = Writer(window, live)
    seen = []

    def a_byte() -> None:
        seen.append(area._pool.made_bytes)
        assert writer.read(1) == 1

    stepped.while_waiting = a_byte
    go_on(live, window)
    assert set(seen) == {ONE_BUFFER}
    assert window.cost.fence_wait_seconds > 0
    writer.check()


class Unanswered(Stepped):
    """Waits in vain, each time as long as was asked for."""

    def __init__(self, pool: BufferPool, longest_seconds: float) -> None:
        super().__init__(pool)
        self.seconds = 0.0
        self._longest_seconds = longest_seconds

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds += timeout
        if self.seconds >= self._longest_seconds:
            self.while_waiting()
            return True
        return False


@pytest.mark.parametrize("is_remote", [True, False])
def test_fence_gives_up_only_a_silent_network(is_remote, caplog):
    """A disk is waited for; after an hour the writer goes on."""
    live = Live(*CYCLE)
    area = StagingArea(ONE_BUFFER, lambda: unanswered.seconds, is_remote=is_remote)
    unanswered = Unanswered(area._pool, 3600)
    window = area.open(live.capture(), SaveCost(), Handling())
    writer = Writer(window, live)
    unanswered.while_waiting = lambda: writer.read(1)
    go_on(live, window)
    waits = "training waits for the checkpoint of cycle 0: the buffers (0 MiB) are full and the storage is slow"
    assert waits in caplog.text
    if is_remote:
        assert unanswered.seconds == 120
        with pytest.raises(StorageError, match=r"abandoned so that training could continue: .* nothing for 120 s"):
            writer.read(1)
    else:
        assert unanswered.seconds > 3600
        writer.check()


LARGE: list[Described] = [(f"w.{n}", "weights", "cycle", "F32", (100 + n,)) for n in range(40)]


def test_on_a_remote_root_no_fence_waits():
    """Its buffers are as large as the state, unless told otherwise."""
    live = Live(*LARGE)
    window, stepped = opened(live, area=StagingArea(is_remote=True))
    writer = Writer(window, live)
    go_on(live, window)  # nothing was read yet
    assert (stepped.waits, window.cost.fence_wait_seconds) == (0, 0)
    writer.check()
    window, stepped = opened(live, area=StagingArea(4 * ONE_BUFFER, is_remote=True))
    writer = Writer(window, live)
    stepped.while_waiting = lambda: writer.read(5)
    go_on(live, window)
    assert stepped.waits > 0
    writer.check()


def test_what_the_save_copies_leaves_the_fence_its_memory():
    """Otherwise a save in mid-cycle has none left, and its fence waits until the writer has read everything."""
    live = Live(*EVERYTHING)
    cycle_bytes = sum(spec.size_bytes for spec in live.specs if spec.lifetime != "micro")
    window, stepped = opened(live, area=StagingArea(cycle_bytes + ONE_BUFFER))
    writer = Writer(window, live)
    go_on(live, window)  # nothing was read yet
    assert (stepped.waits, window.cost.copied_bytes > 0) == (0, True)
    writer.check()


def test_memory_that_is_made_before_is_all_that_a_save_fills(monkeypatch):
    monkeypatch.setattr("ckptkit.snapshot.staging._FEW_BYTES", 1)
    for handling in (Handling(), Handling(copy_all=True)):
        live, area, cost = Live(*EVERYTHING), StagingArea(PLENTY), SaveCost()
        prepare(area, live.capture().leaves, handling)
        made = area._pool.made_bytes
        window = area.open(live.capture(), cost, handling)
        assert 0 < cost.copied_bytes <= made < cost.copied_bytes + ONE_BUFFER
        assert area._pool.made_bytes <= made + 2 * ONE_BUFFER  # for the gaps between dtypes
        window.release()


def prepare(area, leaves, handling=None) -> None:
    area.prepare(leaves, handling or Handling())
    for thread in threading.enumerate():
        if thread.name == "ckptkit-memory":
            thread.join()


def test_a_little_memory_is_left_to_the_first_save():
    area = StagingArea(PLENTY)
    prepare(area, Live(*EVERYTHING).capture().leaves, Handling(copy_all=True))
    assert area._pool.made_bytes == 0


def test_no_memory_is_made_after_the_end(monkeypatch):
    monkeypatch.setattr("ckptkit.snapshot.staging._FEW_BYTES", 1)
    area = StagingArea(PLENTY)
    area.end_preparing()
    prepare(area, Live(*EVERYTHING).capture().leaves, Handling(copy_all=True))
    assert area._pool.made_bytes == 0


def test_without_a_thread_the_first_save_makes_its_memory(monkeypatch):
    def refuse(worker):
        raise NoThreadError("can't start new thread")

    monkeypatch.setattr("ckptkit.snapshot.staging._FEW_BYTES", 1)
    monkeypatch.setattr(Worker, "start", refuse)
    area = StagingArea(PLENTY)
    area.prepare(Live(*EVERYTHING).capture().leaves, Handling(copy_all=True))
    assert area._pool.made_bytes == 0


def test_buffers_are_a_quarter_of_the_state():
    live = Live(*LARGE)
    area = StagingArea()
    window, stepped = opened(live, area=area)
    writer = Writer(window, live)
    stepped.while_waiting = lambda: writer.read(5)
    go_on(live, window)
    writer.check()
    size_bytes = sum(spec.size_bytes for spec in live.specs)
    assert size_bytes / 4 - ONE_BUFFER < area._pool.made_bytes <= size_bytes / 4


@pytest.mark.parametrize("state", ["everything", "cycle", "dtypes"])
@pytest.mark.parametrize("by_slices", [False, True])
@pytest.mark.parametrize("buffer_bytes", [1, 2 * ONE_BUFFER])
@pytest.mark.parametrize("steps", [0, 2])
def test_fence_and_writer_never_deadlock(state, by_slices, buffer_bytes, steps):
    """Real threads: what the save itself copied fills the buffers, and is read last of all."""
    live = Live(*STATES[state])
    area = StagingArea(buffer_bytes)
    window = area.open(live.capture(), SaveCost(), Handling(by_slices=by_slices))
    copied_bytes = area._pool.made_bytes
    writer = Writer(window, live)
    reading = threading.Thread(target=writer.read, args=[1 << 60], daemon=True)
    reading.start()

    def training() -> None:
        for left in range(steps, 0, -1):
            live.scribble("micro")
            window.advance(left)
        go_on(live, window)

    trained = threading.Thread(target=training, daemon=True)
    trained.start()
    for thread in (trained, reading):
        thread.join(LONG_SECONDS)
        assert not thread.is_alive(), "the fence and the writer wait for each other"
    writer.check()
    window.release()
    frozen_bytes = sum(spec.size_bytes for spec in live.specs if spec.lifetime == "frozen") if by_slices else 0
    assert area._pool.made_bytes <= copied_bytes + max(buffer_bytes, ONE_BUFFER) + frozen_bytes


def test_slices_of_reread_file_need_full_room():
    """One frozen leaf was demoted, so that the other, which counts as written, goes into a new file."""
    live = Live(*EVERYTHING)
    area = StagingArea(ONE_BUFFER)
    names = frozenset(name for name, *_ in FROZEN)
    handling = Handling(by_slices=True, settled=names, demoted=frozenset({"f.small"}))
    window = area.open(live.capture(), SaveCost(), handling)
    writer = Writer(window, live)
    reading = threading.Thread(target=writer.read, args=[1 << 60], daemon=True)
    trained = threading.Thread(target=go_on, args=[live, window], daemon=True)
    for thread in (reading, trained):
        thread.start()
    for thread in (trained, reading):
        thread.join(LONG_SECONDS)
        assert not thread.is_alive(), "the fence and the writer wait for each other"
    writer.check()


# Anything in any order


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
    @rule()
    def feed(self) -> None:
        if self.window.by_slices:
            self.window.close()
        assert not (self.window.by_slices and self.window.is_open)

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
            assert len(self.area._pool._free) * SMALL_BUFFER_BYTES == self.area._pool.made_bytes


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
