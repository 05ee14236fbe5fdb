"""Direct writes: the bytes are right whatever the disk does to them, and nothing is left running or open."""

import errno
import fcntl
import io
import logging
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptkit.core.worker import Worker
from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage
from ckptkit.storage import source as source_module
from ckptkit.storage import system_calls as system_calls_module
from ckptkit.storage.direct import BUFFERS, DirectWriter
from ckptkit.storage.local import LARGE_BYTES
from ckptkit.storage.source import ReusedMemory
from ckptkit.storage.system_calls import SystemCalls

BUFFER = 1 << 20
SIZES = [0, 1, 4096, BUFFER - 1, BUFFER, BUFFER + 1, BUFFER + 4096, 3 * BUFFER + 7]
ODD = 3 * BUFFER + 7


class Fault:
    """What happens to the ``nth`` call that asks, from 1, and to ``times`` from it on; counts how often it did."""

    def __init__(self, happen, nth=1, times=1) -> None:
        self._happen = happen if callable(happen) else failing(happen)
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


def failing(error):
    def fail(*_):
        raise OSError(error, os.strerror(error)) if isinstance(error, int) else error

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


class Calls(SystemCalls):
    """The system's calls with faults in them; records the writes."""

    def __init__(self, *, direct=lambda *_: None, pwrite=lambda *_: None) -> None:
        self._direct_fault = direct
        self._pwrite_fault = pwrite
        self.switches: list[bool] = []
        self.writes: list[tuple[int, int, bool]] = []  # offset, bytes, direct
        self.threads: set[int] = set()

    def set_direct(self, descriptor, direct):
        self._direct_fault()
        super().set_direct(descriptor, direct)
        self.switches.append(direct)

    def pwrite(self, descriptor, data, offset_bytes):
        self.threads.add(threading.get_ident())
        direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        count = self._pwrite_fault(descriptor, data, offset_bytes)
        if count is None:
            count = super().pwrite(descriptor, data, offset_bytes)
        self.writes.append((offset_bytes, count, direct))
        return count


class Stream:
    """Gives bytes and calls ``act`` at the ``nth`` call."""

    def __init__(self, data: bytes, act=None, nth: int = 1) -> None:
        self._data = io.BytesIO(data)
        self._act = act
        self._nth = nth
        self.calls = 0

    def readinto(self, buffer, /) -> int:
        self.calls += 1
        if self._act and self.calls == self._nth:
            self._act()
        return self._data.readinto(buffer)


def pattern(size_bytes: int, first: int = 1) -> bytes:
    """No two places within a buffer look alike, none is zero, and 253 is prime to every size here."""
    return (bytes(range(1, 254)) * (size_bytes // 253 + 2))[first : first + size_bytes]


def storage_over(folder, calls=None, **options) -> LocalStorage:
    return LocalStorage(folder, large_files=DirectWriter(calls or Calls(), **{"buffer_bytes": BUFFER, **options}))


def put(storage: LocalStorage, key: str, data: bytes) -> None:
    storage.write(key, io.BytesIO(data), len(data))


def at(storage: LocalStorage, key: str) -> bytes:
    return Path(storage.url, key).read_bytes()


def put_whole(storage: LocalStorage, key: str = "a/1", size_bytes: int = ODD, first: int = 1) -> None:
    put(storage, key, pattern(size_bytes, first))
    assert at(storage, key) == pattern(size_bytes, first), key


def refused(storage, match="", size_bytes=5 * BUFFER, kind=StorageError):
    with pytest.raises(kind, match=match or None) as raised:
        put(storage, "a/refused", pattern(size_bytes))
    return raised.value.__cause__


@pytest.fixture
def tmp_path(disk):
    with tempfile.TemporaryDirectory(dir=disk) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    threads = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= threads
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert not [name for name in links if name.startswith(str(tmp_path))]
    assert not system_calls_module._HIDDEN  # else a child would close whatever file got the number next


@pytest.fixture(scope="module")
def disk():
    """A folder on a disk: one in memory takes direct writes that no disk would."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        descriptor = os.open(f"{folder}/probe", os.O_WRONLY | os.O_CREAT)
        try:
            SystemCalls().set_direct(descriptor, True)
        except OSError as error:
            pytest.skip(f"no direct writes below {folder}: {error}")
        finally:
            os.close(descriptor)
        yield Path(folder)


# The bytes


@pytest.mark.parametrize("direct", [True, False])
def test_file_of_any_size_has_no_padding(tmp_path, direct):
    calls = Calls(**({} if direct else {"direct": failing(errno.EINVAL)}))
    storage = storage_over(tmp_path, calls)
    for size_bytes in SIZES:
        calls.writes.clear()
        put_whole(storage, f"a/{size_bytes}", size_bytes)
        assert len(calls.writes) == (-(-size_bytes // BUFFER) if size_bytes >= LARGE_BYTES else 0)
        assert {mode for *_, mode in calls.writes} <= {direct}


def test_direct_writes_are_aligned_in_another_thread(tmp_path):
    calls = Calls()
    put(storage_over(tmp_path, calls), "a/1", pattern(ODD))
    assert [write[:2] for write in calls.writes] == [(n * BUFFER, BUFFER) for n in range(3)] + [(3 * BUFFER, 4096)]
    assert len(calls.threads) == 1
    assert threading.get_ident() not in calls.threads


def test_no_buffer_is_refilled_during_its_write(tmp_path):
    """The write is held until the caller has come as far as it can."""
    filled = threading.Condition()

    class Telling(Stream):
        def readinto(self, buffer, /):
            count = super().readinto(buffer)
            with filled:
                filled.notify_all()
            return count

    stream = Telling(pattern(5 * BUFFER + 7))

    def hold(descriptor, data, offset):
        before = bytes(data)
        with filled:
            # The caller is one buffer ahead; with the bytes that are left it may be at the end.
            assert filled.wait_for(lambda: stream.calls >= min(offset // BUFFER + BUFFERS, 6), timeout=60)
        assert bytes(data) == before
        return os.pwrite(descriptor, data, offset)

    fault = Fault(hold, times=6)
    storage = storage_over(tmp_path, Calls(pwrite=fault))
    storage.write("a/1", stream, 5 * BUFFER + 7)
    assert fault.fired == 6
    assert at(storage, "a/1") == pattern(5 * BUFFER + 7)


def test_buffers_are_made_once_and_kept_after_a_failure(tmp_path, monkeypatch):
    made, touched = [], source_module.touched
    monkeypatch.setattr(source_module, "touched", lambda size_bytes: made.append(size_bytes) or touched(size_bytes))
    storage = storage_over(tmp_path, Calls(pwrite=Fault(errno.EIO, nth=4), direct=Fault(errno.EIO, nth=3)))
    put(storage, "a/small", b"1")
    assert made == []
    put_whole(storage, "a/0", 3 * BUFFER)
    for _ in range(2):
        refused(storage)
    with pytest.raises(OSError, match="source"):
        storage.write("a/3", Stream(pattern(5 * BUFFER), failing(OSError("source")), nth=2), 5 * BUFFER)
    put_whole(storage, "a/4", 2 * BUFFER + 9, 7)
    assert made == [BUFFER] * BUFFERS


def test_memory_lent_has_the_size_asked_for_and_is_kept():
    """Parts of a huge file are larger than those of the one before; only one file's are kept."""
    memory = ReusedMemory(2)
    for size_bytes in (20, 10, 30, 10):
        with memory.lent(size_bytes) as lent:
            assert [len(buffer) for buffer in lent] == [size_bytes] * 2
    with memory.lent(10) as first, memory.lent(10) as second:
        pass
    with memory.lent(10, 4) as later:
        assert len(later) == 4
        assert sum(any(buffer.obj is old.obj for old in (*first, *second)) for buffer in later) == 2


# Refused


def test_refused_direct_mode_or_write_falls_back_without_loss(tmp_path, caplog):
    """The file system is asked only once."""
    caplog.set_level(logging.INFO, "ckptkit")
    for number, nth in [(errno.EINVAL, 0), (errno.EOPNOTSUPP, 0), (errno.EINVAL, 1), (errno.EOPNOTSUPP, 4)]:
        refusal = Fault(number, nth, times=1) if nth else Fault(number, times=99)
        calls = Calls(**{"pwrite" if nth else "direct": refusal})
        storage = storage_over(tmp_path / f"{number}-{nth}", calls)
        for name in ("a/1", "a/2"):
            put_whole(storage, name)
        assert refusal.fired == 1
        assert [direct for *_, direct in calls.writes] == [True] * max(0, nth - 1) + [False] * (9 - max(1, nth))
        assert calls.switches == ([True, False] if nth else [])
        assert [record.levelname for record in caplog.records] == ["INFO"]
        caplog.clear()


# Errors


def test_failed_calls_are_storage_errors_with_their_cause(tmp_path):
    rows = [({"pwrite": Fault(errno.ENOSPC, nth)}, errno.ENOSPC, 1) for nth in (1, 2, 6)]
    rows += [({"pwrite": Fault(number)}, number, 1) for number in (errno.EIO, errno.EDQUOT)]
    rows += [({"pwrite": Fault(errno.EINVAL, times=99)}, errno.EINVAL, 2)]  # buffered, too
    rows += [({"pwrite": Fault(lambda *_: 0)}, errno.EIO, 1)]  # it wrote nothing
    rows += [({"direct": Fault(number)}, number, 1) for number in (errno.EIO, errno.EBADF)]  # no refusals
    rows += [({"pwrite": Fault(errno.EINVAL), "direct": Fault(errno.EIO, nth=2)}, errno.EIO, 1)]  # to leave it
    for place, (faults, number, times) in enumerate(rows):
        storage = storage_over(tmp_path / str(place), Calls(**faults))
        assert refused(storage, "could not write", 5 * BUFFER + 7).errno == number, place
        assert {fault.fired for fault in faults.values()} == {times}, place
        assert not storage.list("a").files
        if times == 1:
            put_whole(storage, "a/2", 5 * BUFFER + 7)


def test_no_memory_for_buffers_is_storage_error_and_leaves_nothing_open(tmp_path, monkeypatch):
    storage = storage_over(tmp_path)
    put(storage, "a/0", b"")
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(source_module, "touched", failing(errno.ENOMEM))
    refused(storage, "Cannot allocate memory")
    assert os.listdir("/proc/self/fd") == before


def closes(patch, fault) -> None:
    """Close files as a network file system does that could not write: with an error, if the file was written to."""
    real = os.close

    def close(descriptor):
        written_to = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        real(descriptor)
        if written_to:
            fault()

    patch.setattr(os, "close", close)


@pytest.mark.timeout(60)
def test_failed_close_is_a_failed_write(tmp_path, monkeypatch):
    for size_bytes, nth in [(7, 1), (LARGE_BYTES, 1), (5 * BUFFER, 1), (5 * BUFFER, 2)]:
        fault = Fault(errno.EDQUOT, nth)
        with monkeypatch.context() as patch:
            closes(patch, fault)
            assert refused(storage_over(tmp_path), "quota", size_bytes).errno == errno.EDQUOT
        assert fault.fired == 1, (size_bytes, nth)
    for nth in (1, 2, 5):  # and the write as well: it ends, and with the first error
        full, lost = Fault(errno.ENOSPC, nth, times=9), Fault(errno.EIO, times=9)
        with monkeypatch.context() as patch:
            closes(patch, lost)
            assert refused(storage_over(tmp_path, Calls(pwrite=full)), "No space left").errno == errno.ENOSPC
        assert (full.fired, lost.fired) == (1, 2), nth
        put_whole(storage_over(tmp_path), f"a/{nth}")


def test_abandoned_file_gets_no_further_writes(tmp_path, monkeypatch):
    held, reached = threading.Event(), threading.Event()
    real = Worker.join

    def hold(*_):
        reached.set()
        assert held.wait(60)

    def join(worker):
        held.set()  # by now the caller has given up
        real(worker)

    def fail():
        assert reached.wait(60)  # one buffer is being written, another waits
        monkeypatch.setattr(Worker, "join", join)
        raise ValueError("source")

    calls = Calls(pwrite=Fault(hold))
    with pytest.raises(ValueError, match="source"):
        storage_over(tmp_path, calls, buffers=3).write("a/1", Stream(pattern(5 * BUFFER), fail, 3), 5 * BUFFER)
    assert len(calls.writes) == 1


# Short writes


def test_a_short_write_is_continued(tmp_path):
    rows = [(taken, nth) for taken in (1, 511, 4095, 4096, 4097, BUFFER - 4096, BUFFER - 1) for nth in (1, 3)]
    for taken, nth in rows:
        fault = Fault(in_part(taken), nth=nth)
        calls = Calls(pwrite=fault)
        put_whole(storage_over(tmp_path, calls), f"a/{taken}-{nth}")
        assert fault.fired == 1
        assert calls.switches == ([True] if taken % 4096 == 0 else [True, False])
        assert all(direct == (taken % 4096 == 0) for *_, direct in calls.writes[nth:])
    for taken in (1, 6, 7, 8, 512):  # of the padded tail
        fault = Fault(in_part(taken), nth=2)
        put_whole(storage_over(tmp_path, Calls(pwrite=fault)), f"b/{taken}", BUFFER + 7)
        assert fault.fired == 1
    fault = Fault(in_part(8192), times=10_000)
    put_whole(storage_over(tmp_path, Calls(pwrite=fault)), "c/all")
    assert fault.fired == 3 * BUFFER // 8192 + 1


# Threads


def test_several_threads_may_write_at_once(tmp_path):
    storage = storage_over(tmp_path)
    barrier = threading.Barrier(4)

    def run(thread: int) -> None:
        for number in range(3):
            barrier.wait(timeout=60)
            put_whole(storage, f"a/{thread}-{number}", 3 * BUFFER + thread, thread * 50 + number)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(run, thread) for thread in range(4)]:
            future.result(timeout=120)


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
    refused(storage_over(tmp_path, Calls(pwrite=Fault(hold))), size_bytes=BUFFER, kind=KeyboardInterrupt)
    others = [os.open(tmp_path / f"other{n}", os.O_WRONLY | os.O_CREAT) for n in range(4)]
    held.set()
    joined.set()
    for thread in threading.enumerate():
        if thread.name == "ckptkit-lane":
            thread.join(60)
    for other in others:
        os.close(other)
    assert written_to == [f"{tmp_path / 'a/refused'} (deleted)"]  # nothing of a failed write is left
    assert all((tmp_path / f"other{n}").stat().st_size == 0 for n in range(4))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("size_bytes", "nth"), [(7, 1), (5 * BUFFER, 3)])
def test_forked_child_holds_no_file_open(tmp_path, size_bytes, nth):
    """Or what retention deletes would take space for as long as a data worker lives."""
    codes = []

    def fork():
        child = os.fork()
        if not child:
            links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
            os._exit(sum(name.startswith(str(tmp_path)) for name in links))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    storage = storage_over(tmp_path)
    storage.write("a/1", Stream(pattern(size_bytes), fork, nth), size_bytes)
    assert codes == [0]
    assert at(storage, "a/1") == pattern(size_bytes)
