"""Direct writes: the bytes are right whatever the disk does to them, and nothing is left running or open."""

import errno
import fcntl
import io
import logging
import os
import tempfile
import threading
from pathlib import Path

import pytest
from support.live import let_end

from ckptkit.core.worker import Worker
from ckptkit.errors import StorageError
from ckptkit.storage import LocalStorage, direct
from ckptkit.storage import system_calls as system_calls_module
from ckptkit.storage.direct import BUFFERS, DirectWriter
from ckptkit.storage.local import LARGE_BYTES
from ckptkit.storage.system_calls import SystemCalls
from ckptkit.storage.written_stream import ReusedMemory

BUFFER = 1 << 20
SIZES = [0, 1, BUFFER - 1, BUFFER, BUFFER + 1, BUFFER + 4096, 3 * BUFFER + 7]
ODD = 3 * BUFFER + 7


class Fault:
    """What happens to the ``nth`` call, from 1, and to ``times`` from it on; counts how often it did."""

    def __init__(self, happen, nth=1, times=1) -> None:
        self._happen = happen if callable(happen) else failing(happen)
        self._calls = range(nth, nth + times)
        self._asked = self.fired = 0

    def __call__(self, *args):
        self._asked += 1
        if self._asked not in self._calls:
            return None
        self.fired += 1
        return self._happen(*args)


def failing(error):
    def fail(*_):
        raise OSError(error, os.strerror(error)) if isinstance(error, int) else error

    return fail


def in_part(size_bytes):
    def write(descriptor, data, offset):
        # Asked for so few, the file system would refuse a direct write instead of breaking off in it.
        SystemCalls().set_direct(descriptor, False)
        count = os.pwrite(descriptor, data[:size_bytes], offset)
        SystemCalls().set_direct(descriptor, True)
        return count

    return write


class Calls(SystemCalls):
    def __init__(self, *, direct=lambda *_: None, pwrite=lambda *_: None) -> None:
        self._direct_fault, self._pwrite_fault = direct, pwrite
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
    def __init__(self, data: bytes, act=lambda: None, nth: int = 1) -> None:
        self._data, self._act, self._nth, self.calls = io.BytesIO(data), act, nth, 0

    def readinto(self, buffer, /) -> int:
        self.calls += 1
        if self.calls == self._nth:
            self._act()
        return self._data.readinto(buffer)


def pattern(size_bytes: int, first: int = 1) -> bytes:
    """No two places within a buffer look alike, none is zero, and 253 is prime to every size here."""
    return (bytes(range(1, 254)) * (size_bytes // 253 + 2))[first : first + size_bytes]


def storage_over(folder, calls=None, **options) -> LocalStorage:
    """A storage whose direct writes go through ``calls``, as those of any other from now on."""
    direct.SYSTEM = calls or Calls()
    return LocalStorage(folder, large_files=DirectWriter(**{"buffer_bytes": BUFFER, **options}))


def put(storage: LocalStorage, key: str, data: bytes) -> None:
    storage.write(key, io.BytesIO(data), len(data))


def put_whole(storage: LocalStorage, key: str = "a/1", size_bytes: int = ODD, first: int = 1) -> None:
    put(storage, key, pattern(size_bytes, first))
    assert Path(storage.url, key).read_bytes() == pattern(size_bytes, first), key


def refused(storage, match="", size_bytes=5 * BUFFER, kind=StorageError):
    with pytest.raises(kind, match=match or None) as raised:
        put(storage, "a/refused", pattern(size_bytes))
    return raised.value.__cause__


@pytest.fixture
def tmp_path():
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


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(direct, "SYSTEM", Calls())  # and takes back what `storage_over` puts there
    threads = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= threads
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert not [name for name in links if name.startswith(str(tmp_path))]
    assert not system_calls_module._HIDDEN  # else a child would close whatever file got the number next


@pytest.mark.parametrize("direct", [True, False])
def test_file_of_any_size_has_no_padding(tmp_path, direct):
    calls = Calls(**({} if direct else {"direct": failing(errno.EINVAL)}))
    storage = storage_over(tmp_path, calls)
    for size_bytes in SIZES:
        calls.writes.clear()
        put_whole(storage, f"a/{size_bytes}", size_bytes)
        assert len(calls.writes) == (-(-size_bytes // BUFFER) if size_bytes >= LARGE_BYTES else 0)
        assert {mode for *_, mode in calls.writes} <= {direct}
    tail = [(3 * BUFFER, 4096 if direct else 7)]  # aligned, and in another thread
    assert [write[:2] for write in calls.writes] == [(n * BUFFER, BUFFER) for n in range(3)] + tail
    assert threading.get_ident() not in calls.threads


def test_no_buffer_is_refilled_during_its_write(tmp_path):
    """The write is held until the caller has come as far as it can."""
    filled, size_bytes = threading.Condition(), 5 * BUFFER + 7

    class Announced(Stream):
        def readinto(self, buffer, /):
            count = super().readinto(buffer)
            with filled:
                filled.notify_all()
            return count

    stream = Announced(pattern(size_bytes))

    def hold(descriptor, data, offset):
        before = bytes(data)
        with filled:
            # The caller is one buffer ahead; with the bytes that are left it may be at the end.
            assert filled.wait_for(lambda: stream.calls >= min(offset // BUFFER + BUFFERS, 6), timeout=60)
        assert bytes(data) == before
        return os.pwrite(descriptor, data, offset)

    fault = Fault(hold, times=6)
    storage_over(tmp_path, Calls(pwrite=fault)).write("a/1", stream, size_bytes)
    assert fault.fired == 6
    assert (tmp_path / "a/1").read_bytes() == pattern(size_bytes)
    memory = ReusedMemory(1)
    for error, is_lent_again in ((ValueError, True), (KeyboardInterrupt, False)):  # after which a write may go on
        with pytest.raises(error), memory.lent(BUFFER) as (buffer,):
            raise error
        with memory.lent(BUFFER) as (other,):
            assert (other is buffer) is is_lent_again


def test_refused_direct_mode_or_write_falls_back_without_loss(tmp_path, caplog):
    caplog.set_level(logging.INFO, "ckptkit")
    for number, nth in [(errno.EINVAL, 0), (errno.EOPNOTSUPP, 0), (errno.EINVAL, 1), (errno.EOPNOTSUPP, 4)]:
        refusal = Fault(number, nth or 1, times=1 if nth else 99)
        calls = Calls(**{"pwrite" if nth else "direct": refusal})
        storage = storage_over(tmp_path / f"{number}-{nth}", calls)
        for name in ("a/1", "a/2"):
            put_whole(storage, name)
        assert refusal.fired == 1
        assert [direct for *_, direct in calls.writes] == [True] * max(0, nth - 1) + [False] * (9 - max(1, nth))
        assert [record.levelname for record in caplog.records] == ["INFO"]
        caplog.clear()


def test_failed_calls_are_storage_errors_with_their_cause(tmp_path):
    rows = [({"pwrite": Fault(errno.ENOSPC, nth)}, errno.ENOSPC, 1) for nth in (1, 2, 6)]
    rows += [({"pwrite": Fault(errno.EINVAL, times=99)}, errno.EINVAL, 2)]  # buffered, too
    rows += [({"pwrite": Fault(lambda *_: 0)}, errno.EIO, 1)]  # it wrote nothing
    rows += [({"direct": Fault(errno.EIO)}, errno.EIO, 1)]  # no refusal
    rows += [({"pwrite": Fault(errno.EINVAL), "direct": Fault(errno.EIO, nth=2)}, errno.EIO, 1)]  # to leave it
    for place, (faults, number, times) in enumerate(rows):
        storage = storage_over(tmp_path / str(place), Calls(**faults))
        assert refused(storage, "could not write", 5 * BUFFER + 7).errno == number, place
        assert {fault.fired for fault in faults.values()} == {times}, place
        assert not storage.list("a").files
        if times == 1:
            put_whole(storage, "a/2", 5 * BUFFER + 7)


def closes(patch, fault) -> None:
    """Close files as a network file system does that could not write: with an error, if the file was written to."""

    def close(descriptor, real=os.close):
        written_to = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
        real(descriptor)
        if written_to:
            fault()

    patch.setattr(os, "close", close)


@pytest.mark.timeout(60)
def test_failed_close_is_a_failed_write(tmp_path, monkeypatch):
    """Of one of the two descriptors, or of both after a failed write, whose error comes first."""
    rows = [(7, 1, 1, None), (5 * BUFFER, 1, 1, None), (5 * BUFFER, 2, 1, None), (5 * BUFFER, 1, 2, errno.ENOSPC)]
    for size_bytes, nth, times, full in rows:
        lost, write = Fault(errno.EDQUOT, nth, times=times), Fault(full or 0, nth=5 if full else 99)
        with monkeypatch.context() as patch:
            closes(patch, lost)
            cause = refused(storage_over(tmp_path, Calls(pwrite=write)), "could not write", size_bytes)
        assert (cause.errno, lost.fired) == (full or errno.EDQUOT, times), (size_bytes, nth)


def test_a_short_write_is_continued(tmp_path):
    rows = [(taken, nth, ODD) for taken in (1, 4095, 4096, 4097, BUFFER - 4096, BUFFER - 1) for nth in (1, 3)]
    rows += [(taken, 2, BUFFER + 7) for taken in (1, 6, 7, 8, 512)]  # of the padded tail
    for taken, nth, size_bytes in rows:
        fault = Fault(in_part(taken), nth=nth)
        calls = Calls(pwrite=fault)
        put_whole(storage_over(tmp_path, calls), f"a/{taken}-{nth}-{size_bytes}", size_bytes)
        assert fault.fired == 1
        if size_bytes == ODD:
            assert calls.switches == ([True] if taken % 4096 == 0 else [True, False])
            assert all(direct == (taken % 4096 == 0) for *_, direct in calls.writes[nth:])
    fault = Fault(in_part(8192), times=10_000)
    put_whole(storage_over(tmp_path, Calls(pwrite=fault)), "c/all")
    assert fault.fired == 3 * BUFFER // 8192 + 1


def test_interrupted_caller_keeps_descriptor_open(tmp_path, monkeypatch):
    """A second Ctrl-C, while the first one waits for the thread: its bytes go to no other file."""
    held, reached, written_to, real = threading.Event(), threading.Event(), [], Worker.join

    def hold(descriptor, data, offset):
        reached.set()
        assert held.wait(60)
        written_to.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    def interrupted(worker):
        assert reached.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "join", interrupted)
    refused(storage_over(tmp_path, Calls(pwrite=Fault(hold))), size_bytes=BUFFER, kind=KeyboardInterrupt)
    monkeypatch.setattr(Worker, "join", real)
    others = [os.open(tmp_path / f"other{n}", os.O_WRONLY | os.O_CREAT) for n in range(4)]
    held.set()
    let_end("ckptkit-lane")
    for other in others:
        assert os.fstat(other).st_size == 0
        os.close(other)
    assert written_to == [f"{tmp_path / 'a/refused'} (deleted)"]  # nothing of a failed write is left


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
    assert (tmp_path / "a/1").read_bytes() == pattern(size_bytes)


def test_abandoned_file_gets_no_further_writes(tmp_path, monkeypatch):
    held, reached, join = threading.Event(), threading.Event(), Worker.join

    def fail():
        assert reached.wait(60)  # one buffer is being written, another waits
        monkeypatch.setattr(Worker, "join", lambda worker: held.set() or join(worker))  # the caller has given up
        raise ValueError("source")

    calls = Calls(pwrite=Fault(lambda *_: reached.set() or (held.wait(60) and None)))
    with pytest.raises(ValueError, match="source"):
        storage_over(tmp_path, calls, buffers=3).write("a/1", Stream(pattern(5 * BUFFER), fail, 3), 5 * BUFFER)
    assert len(calls.writes) == 1
