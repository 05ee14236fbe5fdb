"""Injects faults into a `Storage`: it fails, dies or calls a function at exactly the call that a test names.

With a fault, the wrapped storage holds exactly what reached it, so that a test finds what a crash at that moment leaves
behind. What the wrapped storage makes atomic (``create``) is not broken up, and nothing that was written is lost: a
power loss is another test. Any thread may call it.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

from ckptkit.errors import StorageError
from ckptkit.storage import ByteStream, Listing, Storage

Operation = Literal["probe", "list", "walk", "read", "read_into", "write", "create", "delete", "clear_unfinished"]
When = Literal["before", "during", "after"]

READING: frozenset[Operation] = frozenset({"probe", "list", "walk", "read", "read_into"})
MUTATING: frozenset[Operation] = frozenset({"write", "create", "delete", "clear_unfinished"})
EVERY: frozenset[Operation] = READING | MUTATING
# Operations that a fault may interrupt halfway; a create is atomic and cannot be.
DIVISIBLE: frozenset[Operation] = frozenset({"write", "delete"})


class Killed(BaseException):
    """Simulates the death of the process; a BaseException, so that no ``except Exception`` of ckptkit handles it."""


class Call(NamedTuple):
    """Records one call to a `FaultyStorage`.

    Attributes:
        operation: Name of the method.
        keys: The keys of a delete; none for a probe; otherwise the one key, folder or prefix.
    """

    operation: Operation
    keys: tuple[str, ...]


class Fault:
    """Defines what happens at which calls, and counts how often it happened.

    Args:
        action: ``"error"`` raises a `StorageError`, as a failing server does; ``"kill"`` raises `Killed`; a
            callable is called, and the storage's call goes on when it returns. Any exception of the callable,
            such as its own `Killed`, ends the call.
        operations: The calls that count: names of `Storage`'s methods, such as `MUTATING`.
        key: Shell pattern (``*`` also matches ``/``) that one of the call's keys must match.
        nth: Number of the call that counts, from 1, at which the fault first happens.
        times: Number of calls that count, from that one on, at which the fault happens; None for all.
        when: ``"before"``: the call has had no effect; ``"during"``: half the bytes of a write are at the key, or
            half the keys of a delete are removed; ``"after"``: the call has had its whole effect, but the reply
            is lost, even if the reply is FileNotFoundError or FileExistsError.

    Attributes:
        fired: How often the fault happened; a test that injects a fault should assert it.

    Raises:
        ValueError: If ``nth`` or ``times`` is less than 1, or ``when`` is ``"during"`` and none of ``operations``
            can be interrupted.
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
        """Return whether the fault happens at ``call``; counts a matching call, so ask only once per call."""
        if call.operation not in self._operations:
            return False
        if not any(fnmatch.fnmatchcase(key, self._key) for key in call.keys or ("",)):
            return False
        self._seen += 1
        since = self._seen - self._nth
        if since < 0 or (self._times is not None and since >= self._times):
            return False
        # Checked here and not in the constructor: only the nth call shows which operation it is.
        if self.when == "during" and call.operation not in DIVISIBLE:
            raise AssertionError(f"a fault during {call.operation} was requested, but it is atomic")
        return True

    def happen(self, call: Call) -> None:
        """Carry out the fault; returns only if the call goes on."""
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
    """Wraps a `Storage` and injects faults into its calls.

    Args:
        inner: The wrapped storage.
        faults: The faults; of two faults at one call, the first one listed happens first.

    Attributes:
        calls: All calls, including those that failed, in the order in which they began.
    """

    def __init__(self, inner: Storage, faults: Iterable[Fault] = ()) -> None:
        self._inner = inner
        self.url = inner.url
        self._faults = list(faults)
        self._lock = threading.Lock()
        self._dead = False
        self.calls: list[Call] = []

    @property
    def is_dead(self) -> bool:
        """Whether a `Killed` was raised in a call; every later call raises `Killed`."""
        return self._dead

    def inject(self, fault: Fault) -> Fault:
        """Add ``fault``, which counts calls from now on, and return it."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults; a dead storage stays dead."""
        with self._lock:
            self._faults.clear()

    @property
    def is_remote(self) -> bool:
        return self._inner.is_remote

    @property
    def window_bytes(self) -> int:
        return self._inner.window_bytes

    def probe(self) -> None:
        with self._call("probe"):
            self._inner.probe()

    def list(self, folder: str, prefix: str = "") -> Listing:
        with self._call("list", folder):
            return self._inner.list(folder, prefix)

    def walk(self, prefix: str) -> Mapping[str, int]:
        with self._call("walk", prefix):
            return self._inner.walk(prefix)

    def read(self, key: str, max_bytes: int) -> bytes:
        with self._call("read", key):
            return self._inner.read(key, max_bytes)

    def read_into(self, key: str, buffers: Sequence[memoryview], offset_bytes: int = 0) -> int:
        with self._call("read_into", key):
            return self._inner.read_into(key, buffers, offset_bytes)

    def write(self, key: str, stream: ByteStream, size_bytes: int) -> None:
        with self._call("write", key) as happen:
            if happen is None:
                self._inner.write(key, stream, size_bytes)
                return
            # A separate write of the first half, so that even a backend that buffers or discards parts leaves it.
            half = _taken(stream, size_bytes // 2)
            self._inner.write(key, io.BytesIO(half), size_bytes // 2)
            happen()
            self._inner.delete([key])
            rest = _taken(stream, size_bytes - len(half) + 1)  # one more byte, which would be too many
            self._inner.write(key, io.BytesIO(half + rest), size_bytes)

    def create(self, key: str, data: bytes) -> None:
        with self._call("create", key):
            self._inner.create(key, data)

    def delete(self, keys: Sequence[str]) -> None:
        with self._call("delete", *keys) as happen:
            if happen is None:
                self._inner.delete(keys)
                return
            half = len(keys) // 2
            self._inner.delete(keys[:half])
            happen()
            self._inner.delete(keys[half:])

    def clear_unfinished(self, prefix: str, is_dead: Callable[[str], bool]) -> int:
        with self._call("clear_unfinished", prefix):
            return self._inner.clear_unfinished(prefix, is_dead)

    @contextmanager
    def _call(self, operation: Operation, *keys: str) -> Iterator[Callable[[], None] | None]:
        """Run the faults before and after one call; yields the fault that happens during it, if any."""
        call = Call(operation, keys)
        with self._lock:
            if self._dead:
                raise Killed(f"a dead process does not {operation} {keys}")
            self.calls.append(call)
            struck = [fault for fault in self._faults if fault.strikes(call)]

        def happen(when: When) -> None:
            for fault in struck:
                if fault.when == when:
                    fault.happen(call)

        try:
            happen("before")
            try:
                yield next((partial(fault.happen, call) for fault in struck if fault.when == "during"), None)
            except (FileNotFoundError, FileExistsError):
                # These two are answers, and an answer can be lost, too; a failed call has no answer.
                happen("after")
                raise
            happen("after")
        except Killed:
            with self._lock:
                self._dead = True
            raise


def _taken(stream: ByteStream, size_bytes: int) -> bytes:
    buffer = bytearray(size_bytes)
    return bytes(buffer[: stream.readinto(memoryview(buffer))])
