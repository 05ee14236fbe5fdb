"""A `Storage` that fails, dies or lets somebody else act at exactly the call that a test names.

Guarantees: without faults it behaves as the storage that it wraps; with one, everything that really reached the
wrapped storage lies there and nothing else, so that what a test finds is what a crash at that moment leaves
behind; after a `Killed` no call comes through any more. It does not tear what the wrapped storage makes atomic
(``create``), and loses nothing that was written: a power loss that undoes writes is another test. Any thread.
"""

from __future__ import annotations

import errno
import fnmatch
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple

from ckptkit.errors import StorageError
from ckptkit.storage import ByteStream, Listing, Storage

Operation = Literal["probe", "list", "walk", "read", "read_into", "write", "create", "delete", "clear_unfinished"]
When = Literal["before", "during", "after"]

READING: frozenset[Operation] = frozenset({"probe", "list", "walk", "read", "read_into"})
MUTATING: frozenset[Operation] = frozenset({"write", "create", "delete", "clear_unfinished"})
EVERY: frozenset[Operation] = READING | MUTATING
# Those that a fault may break off halfway; a create is atomic, so it has no inside.
DIVISIBLE: frozenset[Operation] = frozenset({"write", "delete"})


class Killed(BaseException):
    """Stands for the death of the process: no ``except Exception`` of ours may see it and clean up after it."""


class Call(NamedTuple):
    """One call that reached a `FaultyStorage`.

    Attributes:
        operation: Name of the method.
        keys: The keys of a delete, otherwise the one key or folder.
    """

    operation: Operation
    keys: tuple[str, ...]


class Fault:
    """Something that happens at one call, and how often it did.

    Args:
        action: ``"error"`` raises a `StorageError`, as a failing server does; ``"kill"`` raises `Killed`; a
            callable is called, and the storage's call goes on when it returns. Whatever the callable raises
            ends the call, such as a `Killed` of its own.
        operations: Which calls count: the names of `Storage`'s methods, such as `MUTATING`.
        key: Shell pattern (``*`` also matches ``/``) that one of the call's keys must match.
        nth: Happens at the ``nth`` call that counts, from 1.
        times: At how many calls that count, from that one on; None for all.
        when: ``"before"`` the call has any effect; ``"during"``: with half the bytes of a write at the key, or
            half the keys of a delete gone; ``"after"``: all of it happened, but the reply is lost, be it an answer
            such as FileExistsError.

    Attributes:
        fired: How often it happened; a test that injects a fault asserts it.

    Raises:
        ValueError: If ``nth`` or ``times`` is less than 1, or ``when`` is ``"during"`` and ``operations`` has
            none that could be broken off.
    """

    def __init__(
        self,
        action: Literal["error", "kill"] | Callable[[], None],
        *,
        operations: Collection[Operation] = EVERY,
        key: str = "*",
        nth: int = 1,
        times: int | None = 1,
        when: When = "before",
    ) -> None:
        if nth < 1 or (times is not None and times < 1):
            raise ValueError(f"nth and times count from 1, got nth={nth}, times={times}")
        if when == "during" and not DIVISIBLE & set(operations):
            raise ValueError(f"only {sorted(DIVISIBLE)} have an inside, got {sorted(operations)}")
        self._action = action
        self._operations = frozenset(operations)
        self._key = key
        self._nth = nth
        self._times = times
        self.when = when
        self.fired = 0
        self._seen = 0

    def strikes(self, call: Call) -> bool:
        """Whether this fault happens at ``call``; counts it if it matches, so ask once per call."""
        if call.operation not in self._operations:
            return False
        if not any(fnmatch.fnmatchcase(key, self._key) for key in call.keys or ("",)):
            return False
        self._seen += 1
        since = self._seen - self._nth
        if since < 0 or (self._times is not None and since >= self._times):
            return False
        # Checked here and not at the construction: of all operations, the nth decides which one it is.
        if self.when == "during" and call.operation not in DIVISIBLE:
            raise AssertionError(f"a fault during {call.operation} was asked for; it is atomic")
        return True

    def happen(self, call: Call) -> None:
        """Do it; returns only if the call shall go on."""
        self.fired += 1
        if callable(self._action):
            self._action()
        elif self._action == "kill":
            raise Killed(f"killed {self.when} {call.operation} {call.keys[0] if call.keys else ''}")
        else:
            where = f"{self.when} {call.operation} {', '.join(call.keys)[:200]}"
            raise StorageError(f"injected failure {where}") from OSError(errno.EIO, "injected")

    def __repr__(self) -> str:
        what = "call" if callable(self._action) else self._action
        return f"Fault({what} {self.when} {self._key} #{self._nth}, fired {self.fired})"


class FaultyStorage:
    """A `Storage` with faults in it, around a real one.

    Args:
        inner: Where the calls go.
        faults: What happens; of two faults at one call, the first one listed happens first.

    Attributes:
        calls: Every call that was made, those that failed included, in the order in which they began.
    """

    def __init__(self, inner: Storage, faults: Iterable[Fault] = ()) -> None:
        self._inner = inner
        self._faults = list(faults)
        self._lock = threading.Lock()
        self._dead = False
        self.calls: list[Call] = []

    @property
    def url(self) -> str:
        """That of the wrapped storage."""
        return self._inner.url

    @property
    def is_dead(self) -> bool:
        """Whether it saw a `Killed`, after which it does nothing any more."""
        return self._dead

    def inject(self, fault: Fault) -> Fault:
        """Add ``fault``, which counts calls from now on, and return it."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Forget all faults; a storage that is dead stays so."""
        with self._lock:
            self._faults.clear()

    @property
    def is_remote(self) -> bool:
        """As the wrapped storage."""
        return self._inner.is_remote

    @property
    def window_bytes(self) -> int:
        """As the wrapped storage."""
        return self._inner.window_bytes

    def probe(self) -> None:
        """Probe through the faults."""
        with self._call("probe"):
            self._inner.probe()

    def list(self, folder: str, prefix: str = "") -> Listing:
        """List through the faults."""
        with self._call("list", folder):
            return self._inner.list(folder, prefix)

    def walk(self, prefix: str) -> Mapping[str, int]:
        """List through the faults."""
        with self._call("walk", prefix):
            return self._inner.walk(prefix)

    def read(self, key: str, max_bytes: int) -> bytes:
        """Read through the faults."""
        with self._call("read", key):
            return self._inner.read(key, max_bytes)

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        """Read through the faults."""
        with self._call("read_into", key):
            return self._inner.read_into(key, buffers, offset_bytes)

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        """Write through the faults; a write broken off leaves half of its bytes at the key."""
        with self._call("write", key) as inside:
            if inside is None:
                self._inner.write(key, stream, size_bytes)
                return
            # A file of its own, so that every backend has a part there, also one that buffers or would discard it.
            first = _FirstPart(stream, size_bytes // 2)
            self._inner.write(key, first, size_bytes // 2)
            inside.happen_now()
            self._inner.delete([key])
            self._inner.write(key, _Joined(first.given, stream), size_bytes)

    def create(self, key: str, data: bytes) -> None:
        """Create through the faults."""
        with self._call("create", key):
            self._inner.create(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete through the faults; a delete broken off has removed half of its keys."""
        with self._call("delete", *keys) as inside:
            if inside is None:
                self._inner.delete(keys)
                return
            half = len(keys) // 2
            self._inner.delete(keys[:half])
            inside.happen_now()
            self._inner.delete(keys[half:])

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        """Clear through the faults."""
        with self._call("clear_unfinished", prefix):
            return self._inner.clear_unfinished(prefix, is_dead)

    @contextmanager
    def _call(self, operation: Operation, *keys: str) -> Iterator[_Inside | None]:
        """One call with its faults before and after; yields the one that happens during it, if any."""
        call = Call(operation, keys)
        with self._lock:
            if self._dead:
                raise Killed(f"a dead process does not {operation} {keys}")
            self.calls.append(call)
            struck = [fault for fault in self._faults if fault.strikes(call)]
        try:
            for fault in struck:
                if fault.when == "before":
                    fault.happen(call)
            try:
                yield next((_Inside(fault, call) for fault in struck if fault.when == "during"), None)
            except (FileNotFoundError, FileExistsError):
                # These two are answers, and an answer can be lost too; a call that failed has none.
                _after(struck, call)
                raise
            _after(struck, call)
        except Killed:
            with self._lock:
                self._dead = True
            raise


def _after(struck: list[Fault], call: Call) -> None:
    for fault in struck:
        if fault.when == "after":
            fault.happen(call)


class _Inside(NamedTuple):
    """A fault that is to happen in the middle of a call."""

    fault: Fault
    call: Call

    def happen_now(self) -> None:
        self.fault.happen(self.call)


class _FirstPart:
    """The first ``left_bytes`` of a stream, which are kept."""

    def __init__(self, stream: ByteStream, left_bytes: int) -> None:
        self._stream = stream
        self._left_bytes = left_bytes
        self.given = b""

    def readinto(self, buffer: memoryview, /) -> int:
        part = buffer[: self._left_bytes]
        if not part:
            return 0
        count = self._stream.readinto(part)
        self._left_bytes -= count
        self.given += part[:count]
        return count


class _Joined:
    """Bytes that a stream has given already, and what it gives after them."""

    def __init__(self, given: bytes, stream: ByteStream) -> None:
        self._given = memoryview(given)
        self._stream = stream

    def readinto(self, buffer: memoryview, /) -> int:
        count = min(len(buffer), len(self._given))
        buffer[:count] = self._given[:count]
        self._given = self._given[count:]
        return count if count == len(buffer) else count + self._stream.readinto(buffer[count:])
