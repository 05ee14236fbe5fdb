"""Records what this process does, and shows it to ``ckptkit run``, which reads it, if that supervises the process.

``CKPTKIT_HEARTBEAT`` names a folder. A process that restores a run there maps one file of fixed size into its memory
and writes fields of it; the supervisor, on the same machine, reads it while the process lives, and after its death.
What is read is the state at some moment, except that a micro-step and its time may be of two neighbouring micro-steps.
The seconds of the phases are never counted twice, also if the process dies while it enters one.

A micro-step costs some microseconds and no system call. Nothing here fails training: if the file cannot be made, a
warning says so. A forked process shows nothing. Under a supervisor, a signal writes the Python stacks of all threads to
a file beside it, and so does a crash, unless the program has enabled `faulthandler` itself. Training thread only,
except `HeartbeatWriter.committed` and `request`, and what reads.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import logging
import mmap
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal, get_args

from ckptkit.core.text import is_about_data, message_of
from ckptkit.errors import (
    CheckpointNotFoundError,
    FormatVersionError,
    ResumeError,
    SaveFailedError,
    StaleAttemptError,
    StateMismatchError,
    StorageError,
)
from ckptkit.format.events import PhaseName, plain_line

_log = logging.getLogger("ckptkit")

VARIABLE = "CKPTKIT_HEARTBEAT"
ENDING = ".heartbeat"
STACKS_ENDING = ".stacks"
MIRRORS_BYTES = 2048
_MAGIC = 0x636B70746B697431  # "ckptkit1"

Category = Literal["overtaken", "disk-full", "out-of-memory", "storage", "refused", "outage", "data", ""]
Request = Literal["asked", "terminated", "child-died"]  # by somebody; by SIGTERM; by SIGTERM after a child has died

STACKS_SIGNAL = signal.SIGRTMIN + 7  # no launcher or framework is known to use it
_FADES = 0.998  # of the slowest micro-step, with every further one: a half after 350


class Phase(IntEnum):
    """Says what a training process is doing; the time before a file exists is that of `STARTING`."""

    STARTING = 0
    RESTORING = 1
    REPLAYING = 2  # reads batches again that are already trained
    FIRST_STEP = 3  # from the restore to the end of the first micro-step: compilation, the first batch
    TRAINING = 4
    EVALUATING = 5  # what lies between an epoch's last micro-step and its end, or follows `CheckpointManager.pause`
    SAVING = 6  # training waits for a save: the capture, the fence, the ranks
    STORAGE = 7  # waits for a write that has to end: the previous save, the final save, an upload
    ENDED = 8  # after the manager was closed: the rest of the script


_NAMES: Mapping[Phase, PhaseName] = dict(zip(Phase, get_args(PhaseName), strict=True))  # in the same order


class Record(ctypes.Structure):
    """Represents the file of one process; -1 is an unknown number, and no text an unknown text."""

    magic: int
    pid: int
    rank: int
    ranks: int  # of the job
    micro_step: int  # batches delivered when the last micro-step ended, counted from the run's first start
    begun_step: int  # the same number of the last micro-step whose batch has been delivered
    is_meeting: int  # 1 while the process waits for words of the other ranks
    restored_step: int  # batches delivered in the checkpoint that was restored; 0 for a fresh start
    committed_step: int  # batches delivered in the newest checkpoint that this life committed
    attempt: int
    trainings: int  # how many attempts the process has begun
    epoch_size: int  # in batches
    phase_number: int
    failed_in: int  # phase in which an error or a request to end came
    mirror_lag: int  # commits that the mirror farthest behind lacked at the end of the last micro-step or of training
    opened_at: float  # when the file was made; times are by the monotonic clock
    stepped_at: float  # end of the last micro-step of this process; 0 before the first one
    sign_at: float  # last progress besides micro-steps, such as a replayed batch
    slowest: float  # seconds of the slowest recent micro-step; one long ago counts less
    committed_seconds: float  # of `Phase.TRAINING` in this attempt when the newest commit was captured
    born_at: float  # birth of the process, or, if it trained before, the present restore
    before: ctypes.Array[ctypes.c_double]  # seconds of each phase until then
    spent: ctypes.Array[ctypes.c_double]  # seconds of each phase; of the present one, until it began
    offsets: ctypes.Array[ctypes.c_double]  # of the present phase: what is to be added to the time for its seconds
    to_first_step: ctypes.Array[ctypes.c_double]  # seconds of each phase until the process's first micro-step ended
    root: bytes  # URL of the run root
    mirrors: bytes  # URLs, one per line, without those that cannot be found by a URL alone
    checkpoint: bytes  # that was restored; empty for a fresh start
    how: bytes  # finished, closed, failed, preempted or complete; exited if Python ended before the manager was closed
    error: bytes  # class of the error with which the manager was closed
    category: bytes  # what the error means for the next start, or who asked; see `category_of`
    message: bytes  # its first line; without an error, why training was asked to end
    data: bytes  # what the pipeline reads, for people

    @property
    def phase(self) -> Phase:
        return Phase(self.phase_number)

    @property
    def last_phase(self) -> Phase:
        """What the process did when an error or a request to end came, if one did; otherwise what it does."""
        is_ending = self.error or self.category
        return Phase(self.failed_in) if is_ending and self.failed_in in set(Phase) else self.phase

    @property
    def entered_at(self) -> float:
        return self.spent[self.phase] - self.offsets[self.phase]

    @property
    def last_sign_at(self) -> float:
        """The last moment at which the process is known to have got on."""
        return max(self.entered_at, self.stepped_at, self.sign_at)

    def seconds(self, until: float) -> dict[Phase, float]:
        """Return the seconds of each phase from the making of the file up to ``until``."""
        now = self.phase
        seconds = {phase: self.spent[phase] for phase in Phase}
        return {**seconds, now: max(seconds[now], until + self.offsets[now])}

    def enter(self, phase: Phase, now: float) -> None:
        # A death in between loses nothing: the present phase is counted by its offset, and all others by `spent`.
        self.spent[self.phase] = max(self.spent[self.phase], now + self.offsets[self.phase])
        self.offsets[phase] = self.spent[phase] - now
        self.phase_number = phase

    def text(self, name: str) -> str:
        data = bytes(getattr(self, name))
        try:
            return data.decode(errors="surrogatepass")
        except UnicodeDecodeError:  # its end does not fit
            return data.decode(errors="replace")

    def put(self, name: str, text: str) -> None:
        """Set one of the texts, as much of it as fits; a path stays the same, also one that is not valid Unicode."""
        room = getattr(Record, name).size - 1
        setattr(self, name, text.encode(errors="surrogatepass").replace(b"\0", b"?")[:room])


_TEXT_BYTES = {"checkpoint": 128, "how": 32, "error": 256, "category": 32, "mirrors": MIRRORS_BYTES}
_TYPES: dict[str, type[ctypes.c_int64 | ctypes.c_double | ctypes.Array[Any]]] = {
    "int": ctypes.c_int64,
    "float": ctypes.c_double,
    "ctypes.Array[ctypes.c_double]": ctypes.c_double * len(Phase),
}
Record._fields_ = [
    (name, ctypes.c_char * _TEXT_BYTES.get(name, 1024) if kind == "bytes" else _TYPES[kind])
    for name, kind in Record.__annotations__.items()
]
SIZE_BYTES = ctypes.sizeof(Record)


def new_record(memory: memoryview | bytearray) -> Record:
    record = Record.from_buffer(memory)
    for name in ("rank", "ranks", "micro_step", "begun_step", "restored_step", "committed_step", "attempt"):
        setattr(record, name, -1)
    record.epoch_size = -1
    record.magic = _MAGIC
    return record


def read_record(path: Path) -> Record | None:
    before = b""
    for _ in range(5):  # until two reads agree: a field may be written while the file is read
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        if data == before:
            break
        before = data
    if len(data) != SIZE_BYTES:
        return None
    record = Record.from_buffer_copy(data)
    return record if record.magic == _MAGIC and record.phase_number in set(Phase) else None


def read_records(files: Iterable[Path]) -> list[Record]:
    records = map(read_record, files)
    return sorted((record for record in records if record is not None), key=lambda record: (record.rank, record.pid))


_BIRTH = 19  # place of the start time among the numbers after the name in /proc/self/stat, in ticks


def boot_id() -> str | None:
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.fullmatch(r"[0-9a-f-]{1,64}", text) else None


def process_start() -> float | None:
    try:
        numbers = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        seconds = int(numbers[_BIRTH]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - seconds
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.monotonic() - max(0.0, age)


class HeartbeatWriter:
    """Writes the heartbeat of this process; the only instance is `HEARTBEAT`."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._record: Record = new_record(bytearray(SIZE_BYTES))
        self.is_shown = False
        self._born: float | None = None
        self._before: Mapping[Phase, float] = {}
        self._training = False
        self._tried = False
        self._stacks = -1

    @property
    def born(self) -> float:
        """When this process was born, or, if it trained before, when the present restore began; by its clock."""
        return self._born if self._born is not None else self._monotonic()

    def begin(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Keep account from now on, and show it if a supervisor has asked for it; the run is being restored."""
        if not self._tried:
            self._tried = True
            os.register_at_fork(after_in_child=self._forget)
            if folder := os.environ.get(VARIABLE):
                self._open(Path(folder))
        if not self.is_shown:
            self._monotonic = monotonic  # a supervisor compares the seconds with its own
        # The first attempt of a process has the time since its birth, and that of restores that failed before.
        now, record = self._monotonic(), self._record
        birth = process_start() if record.trainings == 0 and self._monotonic is time.monotonic else None
        self._born = now if birth is None else min(birth, now)
        if not self.is_shown:
            record.offsets[record.phase] = record.spent[record.phase] - now  # it may have been another clock's
        self._before = record.seconds(now)
        for name in ("how", "error", "category", "message", "data"):
            record.put(name, "")
        self.enter(Phase.RESTORING)

    def restored(
        self,
        *,
        root: str,
        attempt: int,
        checkpoint: str | None,
        micro_step: int,
        rank: int,
        ranks: int,
        mirrors: Sequence[str] = (),
    ) -> None:
        """Show which run continues from where; the first micro-step follows."""
        record = self._record
        record.rank, record.ranks, record.attempt = rank, ranks, attempt
        record.restored_step = record.micro_step = record.begun_step = micro_step
        record.committed_step, record.committed_seconds, record.mirror_lag = -1, 0.0, 0
        record.trainings += 1
        record.born_at = self.born
        for phase in Phase:
            record.before[phase] = self._before.get(phase, 0.0)
        record.put("root", root)
        urls = "\n".join(mirrors)
        fits = len(urls.encode(errors="surrogatepass")) < MIRRORS_BYTES
        record.put("mirrors", urls if fits else "")  # half a URL is another one
        record.put("checkpoint", checkpoint or "")
        self.enter(Phase.FIRST_STEP)

    def reads(self, data: str, epoch_size: int) -> None:
        self._record.put("data", data)
        self._record.epoch_size = epoch_size

    def begin_step(self) -> None:
        self._record.begun_step = self._record.micro_step + 1

    def step(self, micro_step: int, mirror_lag: Callable[[], int] | None = None) -> None:
        """Show that a micro-step has ended, after ``micro_step`` batches."""
        record = self._record
        if self._training and not self.is_shown:  # only `ckptkit run` reads what follows
            return
        if mirror_lag is not None:
            record.mirror_lag = mirror_lag()
        if not self._training:
            self.enter(Phase.TRAINING)
        elif micro_step != record.micro_step:
            took = self._monotonic() - max(record.stepped_at, record.entered_at)
            record.slowest = max(took, record.slowest * _FADES)
        if micro_step != record.micro_step:
            now = self._monotonic()
            if not record.stepped_at:
                for phase, seconds in record.seconds(now).items():
                    record.to_first_step[phase] = seconds
            record.micro_step = record.begun_step = micro_step
            record.stepped_at = now

    def sign(self) -> None:
        self._record.sign_at = self._monotonic()

    def enter(self, phase: Phase) -> None:
        self._training = phase is Phase.TRAINING
        self._record.enter(phase, self._monotonic())

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        before = self._record.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        self._record.is_meeting = 1
        try:
            yield
        finally:
            self._record.is_meeting = 0

    def spent(self) -> dict[PhaseName, float]:
        """Return the seconds since `born`, by phase."""
        now = self._monotonic()
        spent: dict[PhaseName, float] = {
            _NAMES[phase]: seconds - self._before.get(phase, 0.0)
            for phase, seconds in self._record.seconds(now).items()
        }
        spent["starting"] += now - self.born - sum(spent.values())
        # An offset rounds: a phase that was not entered may have gained 1e-14 s.
        return {name: seconds for name, exact in spent.items() if (seconds := round(exact, 9)) > 0}

    def committed(self, micro_step: int, training_seconds: float) -> None:
        self._record.committed_seconds = training_seconds
        self._record.committed_step = micro_step

    def fail(self, error: BaseException) -> None:
        """Show the error that ends training; the first one counts."""
        if not self._record.error:
            self.request(category_of(error), message_of(error))
            self._record.put("error", type(error).__name__)

    def request(self, category: Request | Category, why: str) -> None:
        """Show that training was asked to end; the thread that hears signals may call this."""
        record = self._record
        if not record.error:
            record.failed_in = record.phase
            record.put("message", plain_line(why))
            record.put("category", category)

    def end(self, how: str, mirror_lag: int = 0) -> None:
        """Show that training has ended; the rest of the script follows."""
        self._record.mirror_lag = mirror_lag
        self._record.put("how", how)
        self.enter(Phase.ENDED)

    def _open(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}{ENDING}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, SIZE_BYTES)  # or a full disk would kill the process at a write
                memory = mmap.mmap(descriptor, SIZE_BYTES)
            finally:
                os.close(descriptor)
            stacks = path.with_suffix(STACKS_ENDING)
            self._stacks = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _log.warning(
                "`ckptkit run` cannot follow this process, because %s cannot be written: %s. Training continues, but "
                "a hang would not be noticed",
                *(path, error),
            )
            return
        record = new_record(memoryview(memory))
        rank = os.environ.get("RANK_ID", "")
        record.pid, record.rank = os.getpid(), int(rank) if rank.isascii() and rank.isdigit() else -1
        record.opened_at = self._monotonic()
        record.offsets[Phase.STARTING] = -record.opened_at
        self._record = record
        self.is_shown = True
        atexit.register(self._exit)
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=self._stacks, all_threads=True)

    def _exit(self) -> None:
        if not self._record.how:  # a process that is killed does not get here
            self._record.put("how", "exited")

    def _forget(self) -> None:
        self._record, self._born, self.is_shown = new_record(bytearray(SIZE_BYTES)), None, False


HEARTBEAT = HeartbeatWriter()

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OUTAGES = (
    *(errno.ETIMEDOUT, errno.EIO, errno.ESTALE, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EREMOTEIO),
)
_OUTAGE_IN_PIPELINE = re.compile(
    rf"(TimeoutError|Connection\w*Error)\b|OSError: \[Errno ({'|'.join(map(str, _OUTAGES))})\]"
)
_NO_MEMORY = ("std::bad_alloc", "Cannot allocate memory", "Allocate memory failed", "Memory not enough")


def category_of(error: BaseException) -> Category:
    """Return what the error, or one that caused it, means for the next start; empty if that is not known."""
    chain = _chain(error)
    refused = ResumeError | StateMismatchError | FormatVersionError | CheckpointNotFoundError
    holds: dict[Category, bool] = {
        "overtaken": any(isinstance(cause, StaleAttemptError) for cause in chain),
        "disk-full": any(isinstance(cause, OSError) and cause.errno in _FULL for cause in chain),
        "out-of-memory": any(isinstance(cause, MemoryError) or _is_about_memory(cause) for cause in chain),
        "storage": any(isinstance(cause, StorageError | SaveFailedError) for cause in chain),
        "refused": isinstance(error, refused),
        "outage": any(map(_is_outage, chain)),
        "data": is_about_data(error),
    }
    return next((category for category, is_it in holds.items() if is_it), "")


def _is_outage(error: BaseException) -> bool:
    """Return whether something outside of this machine did not answer, or a disk failed; later it may."""
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in _OUTAGES
    return _OUTAGE_IN_PIPELINE.match(message_of(error)) is not None


def _chain(error: BaseException | None) -> list[BaseException]:
    chain: list[BaseException] = []
    while error is not None and all(error is not known for known in chain):  # an error may define its own ==
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return chain


def _is_about_memory(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)
