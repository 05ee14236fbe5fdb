"""A training's memory that a test changes as it likes, and a writer that reads its window as far as it is told."""

import threading
from collections.abc import Callable, Iterator

import numpy as np

from ckptkit.core.contents import Capture
from ckptkit.core.progress import Progress
from ckptkit.core.save_report import SaveCost
from ckptkit.core.tensors import DTYPES, Leaf, LeafSpec, Lifetime, Role, bytes_of
from ckptkit.snapshot import Handling, StagingArea, Window
from ckptkit.snapshot.buffers import BufferPool

PROGRESS = Progress(
    epoch=0, batch=1, cycles=0, updates=0, micro_step=1, accumulation_steps=4, batches_delivered=1, cycle_first_batch=0
)
SMALL_BUFFER_BYTES = 64


class Live:
    """Leaves in memory of their own."""

    def __init__(self, *leaves: tuple[str, Role, Lifetime, str, tuple[int, ...]], copying: bool = False) -> None:
        rng = np.random.default_rng(3)
        self.specs = [LeafSpec(*one) for one in leaves]
        self.memory = {
            spec.name: rng.integers(0, 256, spec.size_bytes, np.uint8).view(DTYPES[spec.dtype]).reshape(spec.shape)
            if spec.dtype != "BOOL"
            else rng.integers(0, 2, spec.shape).astype(bool)
            for spec in self.specs
        }
        self.copies_asked = 0
        self._copying = copying

    def capture(self) -> Capture:
        return Capture(PROGRESS, tuple(Leaf(spec, self._source(spec)) for spec in self.specs), {"some": "state"})

    def _source(self, spec: LeafSpec):
        array = self.memory[spec.name]
        if not self._copying or spec.lifetime == "micro":
            return array

        def copied():
            self.copies_asked += 1
            return array.copy()

        return copied

    def files(self, window: Window) -> list[bytes]:
        """What the shards of ``window`` would be now."""
        return [
            shard.header + b"".join(self.memory[leaf.name].tobytes() for leaf in shard.leaves)
            for shard in window.shards
        ]

    def scribble(self, *lifetimes: Lifetime) -> None:
        """Change every byte of the leaves with these lifetimes."""
        for spec in self.specs:
            if spec.lifetime in lifetimes and spec.size_bytes:
                flat = bytes_of(self.memory[spec.name])
                flat ^= np.uint8(0x01 if spec.dtype == "BOOL" else 0xA5)


class Writer:
    """Reads every shard of ``window`` as `ckptkit.checkpoint.write` does, in steps."""

    def __init__(self, window: Window, live: Live, *, settled: bool = False) -> None:
        self.window = window
        self.expected: list[bytes] = []
        self._passes: list[tuple[int, bool]] = []
        files = live.files(window)
        for number, shard in enumerate(window.shards):
            twice = shard.frozen and not settled
            self._passes += [(number, False), (number, True)] if twice else [(number, True)]
        self.expected = [files[number] for number, _ in self._passes]
        self.found = [bytearray() for _ in self._passes]
        self.size_bytes = sum(map(len, self.expected))
        self._readers = [window.open_shard(number, last=last) for number, last in self._passes]
        self._pass = 0
        self.reading = False

    @property
    def read_bytes(self) -> int:
        return sum(map(len, self.found))

    @property
    def done(self) -> bool:
        return self.read_bytes == self.size_bytes

    def read(self, count: int) -> int:
        """Read the next ``count`` bytes, or what there is; returns how many."""
        done = 0
        while done < count and self._pass < len(self._passes):
            into, whole = self.found[self._pass], self.expected[self._pass]
            out = memoryview(bytearray(min(count - done, len(whole) - len(into))))
            assert not self.reading
            self.reading = True
            assert self._readers[self._pass].readinto(out) == len(out)
            self.reading = False
            into += out
            done += len(out)
            if len(into) == len(whole):
                assert self._readers[self._pass].readinto(memoryview(bytearray(1))) == 0
                self._pass += 1
        return done

    def read_what_is_there(self, at_most: int = 1 << 60) -> int:
        """As `read`, but never so far that it would have to wait for a slice."""
        done = 0
        while done < at_most and not self.done:
            there = min(self._there(), at_most - done)
            if not there:
                break
            done += self.read(there)
        return done

    def _there(self) -> int:
        """Bytes that can be read now: what is between the writer and the first byte that is not copied yet."""
        number, _ = self._passes[self._pass]
        at = len(self.found[self._pass])
        there = 0
        for extent in self.window._extents[number]:  # nothing else knows it
            if at >= extent.size_bytes:
                at -= extent.size_bytes
                continue
            while at < extent.size_bytes:
                piece = extent.piece_at(at)
                if piece is None and not extent.held:
                    return there
                stop = extent.size_bytes if piece is None else piece.stop
                there += stop - at
                at = stop
            at = 0
        return there

    def check(self) -> None:
        """Read the rest; every byte must be as it was when this writer was made."""
        self.read(1 << 60)
        assert [bytes(one) for one in self.found] == self.expected


class Stepped(threading.Condition):
    """Of a pool, in a test of one thread: whoever would wait lets ``while_waiting`` act for the other side instead.

    If that returns False, the time to wait was over before anything moved.
    """

    def __init__(self, pool: BufferPool) -> None:
        super().__init__(pool.lock)
        pool.changed = self
        self.while_waiting: Callable[[], object] | None = None
        self.waits = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        assert self.while_waiting is not None, "somebody waits, and nobody is there to end it"
        assert self.waits < 100_000, "the wait never ends"
        return self.while_waiting() is not False


def opened(
    live: Live, *, buffer_bytes: int | None = None, area: StagingArea | None = None, **handling: object
) -> tuple[Window, Stepped]:
    """A window on ``live``, in a test of one thread."""
    area = area or StagingArea(buffer_bytes)
    stepped = area._pool.changed if isinstance(area._pool.changed, Stepped) else Stepped(area._pool)
    return area.open(live.capture(), SaveCost(), Handling(**handling)), stepped


def cuts(writer: Writer) -> Iterator[int]:
    """Every place that could matter: around the borders of files, headers, leaves and buffers, and in between."""
    at = 0
    borders = {0, writer.size_bytes}
    for number, _ in writer._passes:
        shard = writer.window.shards[number]
        borders.add(at)
        for leaf, offset in shard.offsets_bytes():
            inside = range(0, leaf.size_bytes + 1, SMALL_BUFFER_BYTES)
            borders |= {at + offset + border for border in [*inside, leaf.size_bytes]}
            # Copies are made from the end, so that their borders count from there.
            borders |= {at + offset + leaf.size_bytes - border for border in inside}
        at += shard.size_bytes
    near = {border + delta for border in borders for delta in (-1, 0, 1)}
    yield from sorted(cut for cut in near if 0 <= cut <= writer.size_bytes)


LONG_SECONDS = 60.0


class Stall:
    """What a storage does at one call: it waits there until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._go = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._go.wait(LONG_SECONDS)

    def let_go(self) -> None:
        self._go.set()


def let_end(name: str) -> None:
    """Wait for the threads of this name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(LONG_SECONDS)
