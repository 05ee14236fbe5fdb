"""Direct writes: the bytes are right whatever the disk does to them, and nothing is left running or open."""

import errno
import io
import logging
import os
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptkit.core.worker import Worker
from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage
from ckptkit.storage import source as source_module
from ckptkit.storage import system_calls as system_calls_module
from ckptkit.storage.capacity import in_pages, is_in_memory
from ckptkit.storage.direct import BUFFER_BYTES, BUFFERS, DirectWriter
from ckptkit.storage.local import LARGE_BYTES
from ckptkit.storage.system_calls import SystemCalls

BUFFER = 1 << 20
TOUCHED = source_module.touched
O_DIRECT = os.O_DIRECT
REFUSALS = [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP]
SIZES = [0, 1, 4095, 4096, 4097, BUFFER - 1, BUFFER, BUFFER + 1, BUFFER + 4096, 2 * BUFFER, 3 * BUFFER + 7]


class Fault:
    """What happens to the ``nth`` call that asks, from 1, and to ``times`` from it on; counts how often it did."""

    def __init__(self, happen, nth=1, times=1) -> None:
        self._happen = happen
        self._calls = range(nth, nth + times)
        self.asked = 0
        self.fired = 0

    def __call__(self, *args):
        """None if nothing happens at this call."""
        self.asked += 1
        if self.asked not in self._calls:
            return None
        self.fired += 1
        return self._happen(*args)


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


def in_part(size_bytes):
    """A disk that breaks off after so many bytes of a direct write, aligned or not."""

    def write(descriptor, data, offset):
        # Asked for so few, the file system would refuse a direct write instead of breaking off in it.
        SystemCalls().set_direct(descriptor, False)
        count = os.pwrite(descriptor, data[:size_bytes], offset)
        SystemCalls().set_direct(descriptor, True)
        return count

    return write


def never(*_):
    return None


def failing_start(thread):
    raise RuntimeError("can't start new thread")


class Calls(SystemCalls):
    """The system's calls with faults in them; records the writes."""

    def __init__(self, *, direct=never, pwrite=never) -> None:
        self._direct_fault = direct
        self._pwrite_fault = pwrite
        self.switches: list[bool] = []
        self.writes: list[tuple[int, int, bool]] = []  # offset, bytes, direct
        self.threads: set[int] = set()
        self.niceness: set[int] = set()

    def set_direct(self, descriptor, direct):
        self._direct_fault()
        super().set_direct(descriptor, direct)
        self.switches.append(direct)

    def pwrite(self, descriptor, data, offset_bytes):
        self.threads.add(threading.get_ident())
        self.niceness.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        direct = bool(_flags(descriptor) & O_DIRECT)
        count = self._pwrite_fault(descriptor, data, offset_bytes)
        if count is None:
            count = super().pwrite(descriptor, data, offset_bytes)
        self.writes.append((offset_bytes, count, direct))
        return count


def _flags(descriptor: int) -> int:
    text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    return int(dict(line.split(":\t", 1) for line in text.splitlines())["flags"].strip(), 8)


class Stream:
    """Gives a pattern and raises ``error`` at the ``nth`` call."""

    def __init__(self, data: bytes, error: BaseException | None = None, nth: int = 1) -> None:
        self._data = io.BytesIO(data)
        self._error = error
        self._nth = nth
        self.calls = 0
        self.fired = 0

    def readinto(self, buffer, /) -> int:
        self.calls += 1
        if self._error and self.calls == self._nth:
            self.fired += 1
            raise self._error
        return self._data.readinto(buffer)


def pattern(size_bytes: int, first: int = 1) -> bytes:
    """No two places within a buffer look alike, none is zero, and 253 is prime to every size here."""
    return (bytes(range(1, 254)) * (size_bytes // 253 + 2))[first : first + size_bytes]


def storage_over(folder, calls, **options) -> LocalStorage:
    return LocalStorage(folder, large_files=DirectWriter(calls, **{"buffer_bytes": BUFFER, **options}))


def put(storage: LocalStorage, key: str, data: bytes) -> None:
    storage.write(key, io.BytesIO(data), len(data))


def at(storage: LocalStorage, key: str) -> bytes:
    return Path(storage.url, key).read_bytes()


def descriptors() -> Counter:
    """What is open, by name: numbers are used again."""
    found = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{name}")] += 1
        except FileNotFoundError:
            continue  # of the listing itself
    return found


@pytest.fixture
def tmp_path(disk):
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    threads = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= threads
    assert not [name for name in descriptors() if name.startswith(str(tmp_path))]


@pytest.fixture(scope="module")
def disk():
    """A folder on a disk: one in memory takes direct writes that no disk would."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        _skip_without_direct_writes(Path(folder) / "probe")
        yield Path(folder)


def _skip_without_direct_writes(path):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        SystemCalls().set_direct(descriptor, True)
    except OSError as error:
        pytest.skip(f"no direct writes below {path.parent}: {error}")
    finally:
        os.close(descriptor)


# The bytes


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("size_bytes", [LARGE_BYTES, BUFFER + 1, 3 * BUFFER + 7])
def test_tmpfs_gets_same_bytes_either_way(size_bytes, taken, caplog):
    """Kernels take O_DIRECT on tmpfs from 6.6 on, where it means nothing, and refuse it with EINVAL before."""
    calls = Calls(direct=never if taken else failing(errno.EINVAL))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, caplog.at_level(logging.INFO):
        assert is_in_memory(Path(folder))
        storage = storage_over(folder, calls)
        for key in ("a/1", "a/2"):
            put(storage, key, pattern(size_bytes))
            assert at(storage, key) == pattern(size_bytes)
            assert os.stat(Path(folder, key)).st_blocks * 512 == in_pages(size_bytes)  # no page of padding stays
        assert sorted(os.listdir(Path(folder, "a"))) == ["1", "2"]
    told = [record for record in caplog.records if "does not support direct writes" in record.getMessage()]
    assert len(told) == (0 if any(direct for *_, direct in calls.writes) else 1)
    assert all(record.levelno == logging.INFO for record in told)


@pytest.mark.parametrize("size_bytes", SIZES)
@pytest.mark.parametrize("direct", [True, False])
def test_file_of_any_size_has_no_padding(tmp_path, size_bytes, direct):
    calls = Calls(direct=never if direct else failing(errno.EINVAL))
    storage = storage_over(tmp_path, calls)
    put(storage, "a/1", pattern(size_bytes))
    assert at(storage, "a/1") == pattern(size_bytes)
    assert len(calls.writes) == (-(-size_bytes // BUFFER) if size_bytes >= LARGE_BYTES else 0)
    assert {each for *_, each in calls.writes} <= {direct}


@pytest.mark.parametrize("size_bytes", [BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES + 7])
def test_default_buffers_write_same_bytes(tmp_path, size_bytes):
    storage = LocalStorage(tmp_path)
    put(storage, "a/1", pattern(size_bytes))
    assert at(storage, "a/1") == pattern(size_bytes)
    assert BUFFERS * BUFFER_BYTES <= 24 << 20


def test_direct_writes_are_aligned_in_another_thread(tmp_path):
    calls = Calls()
    put(storage_over(tmp_path, calls), "a/1", pattern(3 * BUFFER + 7))
    assert [write[:2] for write in calls.writes] == [(n * BUFFER, BUFFER) for n in range(3)] + [(3 * BUFFER, 4096)]
    assert len(calls.threads) == 1
    assert threading.get_ident() not in calls.threads


def test_padding_is_zero_before_truncation(tmp_path):
    seen = []

    def look(descriptor, data, offset):
        seen.append(bytes(data))

    storage = storage_over(tmp_path, Calls(pwrite=Fault(look, times=9)))
    put(storage, "a/1", pattern(2 * BUFFER))
    put(storage, "a/2", pattern(BUFFER + 7, 100))
    assert seen[-1] == pattern(BUFFER + 7, 100)[BUFFER:] + bytes(4096 - 7)


def test_size_is_final_before_sync(tmp_path, monkeypatch):
    sizes = []
    real = os.fsync

    def look(descriptor):
        sizes.append(os.fstat(descriptor).st_size)
        real(descriptor)

    (tmp_path / "a").mkdir()
    storage = storage_over(tmp_path, Calls())
    monkeypatch.setattr(os, "fsync", look)
    put(storage, "a/1", pattern(2 * BUFFER + 7))
    assert 2 * BUFFER + 7 in sizes


def test_no_buffer_is_refilled_during_its_write(tmp_path):
    """The write is held until the caller has come as far as it can."""
    stream = Stream(pattern(5 * BUFFER + 7))
    filled = threading.Condition()

    def hold(descriptor, data, offset):
        before = bytes(data)
        with filled:
            # The caller is one buffer ahead; with the bytes that are left it may be at the end.
            ahead = min(offset // BUFFER + BUFFERS, 6)
            assert filled.wait_for(lambda: stream.calls >= ahead, timeout=60)
        assert bytes(data) == before
        return os.pwrite(descriptor, data, offset)

    class Telling:
        def readinto(self, buffer, /):
            count = stream.readinto(buffer)
            with filled:
                filled.notify_all()
            return count

    fault = Fault(hold, times=6)
    storage = storage_over(tmp_path, Calls(pwrite=fault))
    storage.write("a/1", Telling(), 5 * BUFFER + 7)
    assert fault.fired == 6
    assert at(storage, "a/1") == pattern(5 * BUFFER + 7)


def test_buffers_are_made_once(tmp_path, monkeypatch):
    made = []
    from ckptkit.storage import source

    real = source.touched
    monkeypatch.setattr(source, "touched", lambda size: made.append(size) or real(size))
    storage = storage_over(tmp_path, Calls())
    put(storage, "a/small", b"1")
    assert made == []
    for number in range(4):
        put(storage, f"a/{number}", pattern(2 * BUFFER + number, number + 1))
    assert made == [BUFFER] * BUFFERS
    assert all(at(storage, f"a/{n}") == pattern(2 * BUFFER + n, n + 1) for n in range(4))


# Refused


@pytest.mark.parametrize("number", REFUSALS)
def test_refused_direct_mode_falls_back_to_buffered(tmp_path, caplog, number):
    """The file system is asked only once."""
    caplog.set_level(logging.INFO, "ckptkit")
    refusal = Fault(failing(number), times=99)
    calls = Calls(direct=refusal)
    storage = storage_over(tmp_path, calls)
    for name in ("a/1", "a/2"):
        put(storage, name, pattern(3 * BUFFER + 7))
        assert at(storage, name) == pattern(3 * BUFFER + 7)
    assert refusal.fired == 1
    assert not any(direct for *_, direct in calls.writes)
    assert [record.levelname for record in caplog.records] == ["INFO"]


@pytest.mark.parametrize("number", REFUSALS)
@pytest.mark.parametrize("nth", [1, 2, 4])
def test_refused_direct_write_falls_back_without_loss(tmp_path, caplog, number, nth):
    caplog.set_level(logging.INFO, "ckptkit")
    refusal = Fault(failing(number), nth=nth)
    calls = Calls(pwrite=refusal)
    storage = storage_over(tmp_path, calls)
    for name in ("a/1", "a/2"):
        put(storage, name, pattern(3 * BUFFER + 7))
        assert at(storage, name) == pattern(3 * BUFFER + 7)
    assert refusal.fired == 1
    assert [direct for *_, direct in calls.writes] == [True] * (nth - 1) + [False] * (9 - nth)
    assert calls.switches == [True, False]
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_refusal_in_two_files_is_logged_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ckptkit")
    refused = []

    def refuse(descriptor, *_):
        if _flags(descriptor) & O_DIRECT:
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "injected")

    storage = storage_over(tmp_path, Calls(pwrite=refuse))
    outer = Stream(pattern(2 * BUFFER))

    class Writes:
        def readinto(self, buffer, /):
            if not outer.calls:
                put(storage, "a/inner", pattern(BUFFER, 7))
            return outer.readinto(buffer)

    storage.write("a/outer", Writes(), 2 * BUFFER)
    assert len(refused) == 2
    assert (at(storage, "a/outer"), at(storage, "a/inner")) == (pattern(2 * BUFFER), pattern(BUFFER, 7))
    assert len(caplog.records) == 1


def test_refused_buffered_write_is_error(tmp_path):
    refusal = Fault(failing(errno.EINVAL), times=99)
    with pytest.raises(StorageError, match="Invalid argument"):
        put(storage_over(tmp_path, Calls(pwrite=refusal)), "a/1", pattern(3 * BUFFER + 7))
    assert refusal.fired == 2


# Errors


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("nth", range(1, 7))
def test_failed_write_is_storage_error_with_cause(tmp_path, number, nth):
    fault = Fault(failing(number), nth=nth)
    storage = storage_over(tmp_path, Calls(pwrite=fault))
    with pytest.raises(StorageError, match="could not write") as raised:
        put(storage, "a/1", pattern(5 * BUFFER + 7))
    assert raised.value.__cause__.errno == number
    assert fault.fired == 1
    put(storage, "a/2", pattern(5 * BUFFER + 7))
    assert at(storage, "a/2") == pattern(5 * BUFFER + 7)


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADF])
def test_error_of_direct_switch_is_no_refusal(tmp_path, number):
    fault = Fault(failing(number))
    with pytest.raises(StorageError) as raised:
        put(storage_over(tmp_path, Calls(direct=fault)), "a/1", pattern(2 * BUFFER))
    assert raised.value.__cause__.errno == number
    assert fault.fired == 1


def test_failure_to_leave_direct_mode_is_error(tmp_path):
    stuck = Fault(failing(errno.EIO), nth=2)
    with pytest.raises(StorageError, match="Input/output"):
        put(storage_over(tmp_path, Calls(direct=stuck, pwrite=Fault(failing(errno.EINVAL)))), "a/1", pattern(BUFFER))
    assert stuck.fired == 1


def test_zero_byte_write_is_error(tmp_path):
    fault = Fault(lambda *_: 0)
    with pytest.raises(StorageError, match="wrote nothing"):
        put(storage_over(tmp_path, Calls(pwrite=fault)), "a/1", pattern(BUFFER))
    assert fault.fired == 1


@pytest.mark.parametrize("nth", range(1, 6))
def test_dead_writing_thread_leaves_no_waiter(tmp_path, nth):
    def die(*_):
        raise ZeroDivisionError

    fault = Fault(die, nth=nth)
    with pytest.raises(ZeroDivisionError):
        put(storage_over(tmp_path, Calls(pwrite=fault)), "a/1", pattern(5 * BUFFER))
    assert fault.fired == 1


def test_buffers_are_kept_after_a_failure(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(source_module, "touched", lambda size_bytes: made.append(size_bytes) or TOUCHED(size_bytes))
    storage = storage_over(tmp_path, Calls(pwrite=Fault(failing(errno.EIO)), direct=Fault(failing(errno.EIO), nth=2)))
    for key in ("a/1", "a/2"):
        with pytest.raises(StorageError):
            put(storage, key, pattern(5 * BUFFER))
    with pytest.raises(OSError, match="source"):
        storage.write("a/3", Stream(pattern(5 * BUFFER), OSError("source"), nth=2), 5 * BUFFER)
    put(storage, "a/4", pattern(5 * BUFFER))
    assert len(made) == BUFFERS


def test_no_memory_for_buffers_is_storage_error_and_leaves_nothing_open(tmp_path, monkeypatch):
    storage = storage_over(tmp_path, Calls())
    put(storage, "a/0", b"")
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr("ckptkit.storage.source.touched", failing(errno.ENOMEM))
    with pytest.raises(StorageError, match="Cannot allocate memory"):
        put(storage, "a/1", pattern(BUFFER))
    assert os.listdir("/proc/self/fd") == before


class Closes:
    """Closes files as a network file system does that could not write: with an error, if the file was written to."""

    def __init__(self, patch, fault) -> None:
        self._fault = fault
        self._real = os.close
        patch.setattr(os, "close", self)

    def __call__(self, descriptor):
        written_to = _flags(descriptor) & os.O_ACCMODE != os.O_RDONLY
        self._real(descriptor)
        if written_to:
            self._fault()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("size_bytes", [7, LARGE_BYTES, 5 * BUFFER])
@pytest.mark.parametrize("nth", [1, 2])
def test_failed_close_is_a_failed_write(tmp_path, monkeypatch, size_bytes, nth):
    fault = Fault(failing(errno.EDQUOT), nth=1 if size_bytes < LARGE_BYTES else nth)
    Closes(monkeypatch, fault)
    with pytest.raises(StorageError, match="quota") as raised:
        put(storage_over(tmp_path, Calls()), "a/1", pattern(size_bytes))
    assert raised.value.__cause__.errno == errno.EDQUOT
    assert fault.fired == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_write_and_close_may_both_fail(tmp_path, monkeypatch, nth, alone):
    """It ends, and with the first error."""
    if alone:
        monkeypatch.setattr(threading.Thread, "start", failing_start)
    full, lost = Fault(failing(errno.ENOSPC), nth=nth, times=9), Fault(failing(errno.EIO), times=9)
    Closes(monkeypatch, lost)
    with pytest.raises(StorageError, match="No space left") as raised:
        put(storage_over(tmp_path, Calls(pwrite=full)), "a/1", pattern(5 * BUFFER))
    assert raised.value.__cause__.errno == errno.ENOSPC
    assert (full.fired, lost.fired) == (1, 2)
    monkeypatch.undo()
    put(storage_over(tmp_path, Calls()), "a/2", pattern(5 * BUFFER))
    assert at(storage_over(tmp_path, Calls()), "a/2") == pattern(5 * BUFFER)


@pytest.mark.parametrize("error", [ValueError("source"), OSError(errno.EINVAL, "source"), KeyboardInterrupt()])
@pytest.mark.parametrize("nth", range(1, 8))
def test_source_error_is_raised_unchanged(tmp_path, error, nth):
    """The seventh asks for a byte after the end."""
    stream = Stream(pattern(5 * BUFFER + 7), error, nth)
    storage = storage_over(tmp_path, Calls())
    with pytest.raises(type(error)) as raised:
        storage.write("a/1", stream, 5 * BUFFER + 7)
    assert raised.value is error
    assert stream.fired == 1
    put(storage, "a/2", pattern(5 * BUFFER + 7))
    assert at(storage, "a/2") == pattern(5 * BUFFER + 7)


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("at_call", range(1, 5))
def test_source_and_disk_may_both_fail(tmp_path, nth, at_call):
    stream = Stream(pattern(4 * BUFFER), ValueError("source"), at_call)
    with pytest.raises((ValueError, StorageError)):
        storage_over(tmp_path, Calls(pwrite=Fault(failing(errno.EIO), nth=nth))).write("a/1", stream, 4 * BUFFER)


def test_abandoned_file_gets_no_further_writes(tmp_path, monkeypatch):
    held, reached = threading.Event(), threading.Event()
    real = Worker.join

    def hold(*_):
        reached.set()
        assert held.wait(60)

    def join(worker):
        held.set()  # by now the caller has given up
        real(worker)

    class Fails(Stream):
        def readinto(self, buffer, /):
            if self.calls == 2:  # one is being written, another waits
                assert reached.wait(60)
                monkeypatch.setattr(Worker, "join", join)
            return super().readinto(buffer)

    calls = Calls(pwrite=Fault(hold))
    storage = storage_over(tmp_path, calls, buffers=3)
    with pytest.raises(ValueError, match="source"):
        storage.write("a/1", Fails(pattern(5 * BUFFER), ValueError("source"), 3), 5 * BUFFER)
    assert len(calls.writes) == 1


# Short writes


@pytest.mark.parametrize("taken", [1, 511, 4095, 4096, 4097, 8192, BUFFER - 4096, BUFFER - 1])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_short_write_is_continued(tmp_path, taken, nth):
    fault = Fault(in_part(taken), nth=nth)
    calls = Calls(pwrite=fault)
    storage = storage_over(tmp_path, calls)
    put(storage, "a/1", pattern(3 * BUFFER + 7))
    assert at(storage, "a/1") == pattern(3 * BUFFER + 7)
    assert fault.fired == 1
    assert calls.switches == ([True] if taken % 4096 == 0 else [True, False])
    assert all(direct == (taken % 4096 == 0) for *_, direct in calls.writes[nth:])


@pytest.mark.parametrize("taken", [1, 6, 7, 8, 512])
def test_short_write_of_padded_tail_is_continued(tmp_path, taken):
    fault = Fault(in_part(taken), nth=2)
    storage = storage_over(tmp_path, Calls(pwrite=fault))
    put(storage, "a/1", pattern(BUFFER + 7))
    assert at(storage, "a/1") == pattern(BUFFER + 7)
    assert fault.fired == 1


def test_every_write_may_be_short(tmp_path):
    fault = Fault(in_part(8192), times=10_000)
    storage = storage_over(tmp_path, Calls(pwrite=fault))
    put(storage, "a/1", pattern(3 * BUFFER + 7))
    assert at(storage, "a/1") == pattern(3 * BUFFER + 7)
    assert fault.fired == 3 * BUFFER // 8192 + 1


def test_short_write_affects_only_its_file(tmp_path):
    calls = Calls(pwrite=Fault(in_part(5)))
    storage = storage_over(tmp_path, calls)
    put(storage, "a/1", pattern(BUFFER))
    calls.writes.clear()
    put(storage, "a/2", pattern(BUFFER))
    assert calls.writes == [(0, BUFFER, True)]


# Threads


def test_several_threads_may_write_at_once(tmp_path):
    storage = storage_over(tmp_path, Calls())
    barrier = threading.Barrier(4)

    def run(thread: int) -> None:
        for number in range(5):
            barrier.wait(timeout=60)
            put(storage, f"a/{thread}-{number}", pattern(3 * BUFFER + thread, thread * 50 + number))

    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(run, thread) for thread in range(4)]:
            one.result(timeout=120)
    for thread in range(4):
        for number in range(5):
            assert at(storage, f"a/{thread}-{number}") == pattern(3 * BUFFER + thread, thread * 50 + number)


def test_a_source_may_itself_write_to_the_storage(tmp_path):
    storage = storage_over(tmp_path, Calls())
    outer = Stream(pattern(3 * BUFFER))

    class Writes:
        def readinto(self, buffer, /):
            put(storage, f"a/inner-{outer.calls}", pattern(2 * BUFFER, 77))
            return outer.readinto(buffer)

    storage.write("a/outer", Writes(), 3 * BUFFER)
    assert at(storage, "a/outer") == pattern(3 * BUFFER)
    assert all(at(storage, f"a/inner-{n}") == pattern(2 * BUFFER, 77) for n in range(4))


def test_writing_thread_inherits_niceness(tmp_path):
    calls = Calls()
    storage = storage_over(tmp_path, calls)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)

    def nicely() -> None:
        os.nice(3)
        put(storage, "a/1", pattern(BUFFER))

    caller = threading.Thread(target=nicely)
    caller.start()
    caller.join(60)
    assert calls.niceness == {niceness + 3}
    assert os.getpriority(os.PRIO_PROCESS, 0) == niceness


@pytest.mark.parametrize("nth", [0, 1, 3, 5])
def test_caller_writes_when_threads_cannot_start(tmp_path, monkeypatch, nth):
    monkeypatch.setattr(threading.Thread, "start", failing_start)
    fault = Fault(failing(errno.EIO), nth=nth)
    calls = Calls(pwrite=fault)
    storage = storage_over(tmp_path, calls)
    if nth:
        with pytest.raises(StorageError, match="Input/output"):
            put(storage, "a/0", pattern(4 * BUFFER + 7))
        assert fault.fired == 1
    put(storage, "a/1", pattern(4 * BUFFER + 7))
    assert at(storage, "a/1") == pattern(4 * BUFFER + 7)
    assert calls.threads == {threading.get_ident()}


def test_interrupt_at_thread_start_leaves_no_thread(tmp_path, monkeypatch):
    """It would keep the process from ending."""
    started, start = [], threading.Thread.start

    def interrupted(thread):
        start(thread)
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        put(storage_over(tmp_path, Calls()), "a/1", pattern(5 * BUFFER))
    (thread,) = started
    thread.join(60)
    assert not thread.is_alive()


def test_interrupted_caller_keeps_descriptor_open(tmp_path, monkeypatch):
    """A second Ctrl-C, while the first one waits for the thread: its bytes go to no other file."""
    held, joined, reached = threading.Event(), threading.Event(), threading.Event()
    written_to = []

    def hold(descriptor, data, offset):
        reached.set()
        assert held.wait(60)
        written_to.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    real = Worker.join

    def interrupted(worker):
        if not joined.is_set():
            assert reached.wait(60)
            raise KeyboardInterrupt
        real(worker)

    monkeypatch.setattr(Worker, "join", interrupted)
    storage = storage_over(tmp_path, Calls(pwrite=Fault(hold)))
    with pytest.raises(KeyboardInterrupt):
        put(storage, "a/1", pattern(BUFFER))
    others = [os.open(tmp_path / f"other{n}", os.O_WRONLY | os.O_CREAT) for n in range(4)]
    held.set()
    joined.set()
    for thread in threading.enumerate():
        if thread.name == "ckptkit-lane":
            thread.join(60)
    for other in others:
        os.close(other)
    assert written_to == [f"{tmp_path / 'a/1'} (deleted)"]  # nothing of a failed write is left
    assert all((tmp_path / f"other{n}").stat().st_size == 0 for n in range(4))


class Forks(Stream):
    """Forks a child, which lives until `end`, at its ``nth`` call."""

    child = 0

    def readinto(self, buffer, /):
        if self.calls + 1 == self._nth:
            read, self._pipe = os.pipe()
            here, begun = os.pipe()
            self.child = os.fork()
            if not self.child:
                os.close(self._pipe)
                os.close(begun)  # by now all that is to be done after a fork is done
                os.read(read, 1)
                os._exit(0)
            os.close(begun)
            os.close(read)
            assert os.read(here, 1) == b""
            os.close(here)
        return super().readinto(buffer)

    def end(self):
        os.close(self._pipe)
        assert os.waitpid(self.child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("size_bytes", [7, 5 * BUFFER])
def test_forked_child_holds_no_file_open(tmp_path, size_bytes):
    """Or what retention deletes would take space for as long as a data worker lives."""
    storage = storage_over(tmp_path, Calls())
    stream = Forks(pattern(size_bytes), nth=1 if size_bytes < LARGE_BYTES else 3)
    storage.write("a/1", stream, size_bytes)
    try:
        held = [os.readlink(one) for one in Path(f"/proc/{stream.child}/fd").iterdir()]
    finally:
        stream.end()
    assert [one for one in held if one.startswith(str(tmp_path))] == []
    assert at(storage, "a/1") == pattern(size_bytes)


def test_closed_descriptors_are_forgotten(tmp_path):
    """Else a child would close whatever file got the number next."""
    storage = storage_over(tmp_path, Calls(pwrite=Fault(failing(errno.ENOSPC), nth=2)))
    with pytest.raises(StorageError):
        put(storage, "a/1", pattern(5 * BUFFER))
    put(storage, "a/2", pattern(5 * BUFFER))
    assert not system_calls_module._HIDDEN
