"""Lays out the file in which a training process shows ``ckptkit run`` what it does, and reads it.

``CKPTKIT_HEARTBEAT`` names a folder. A process that restores a run there maps one file of fixed size into its memory
and writes fields of it; the supervisor, on the same machine, reads it while the process lives, and after its death.
What is read is the state at some moment, except that a micro-step and its time may be of two neighbouring micro-steps.
The seconds of the phases are never counted twice, also if the process dies while it enters one. Any thread.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any

VARIABLE = "CKPTKIT_HEARTBEAT"
ENDING = ".heartbeat"
STACKS_ENDING = ".stacks"
MIRRORS_BYTES = 2048
_MAGIC = 0x636B70746B697431  # "ckptkit1"


class Phase(IntEnum):
    """Says what a training process is doing.

    The time before a file exists is that of `STARTING`: the interpreter, imports, the user's code up to the
    restore.
    """

    STARTING = 0
    RESTORING = 1
    REPLAYING = 2  # reads batches again that are already trained
    FIRST_STEP = 3  # from the restore to the end of the first micro-step: compilation, the first batch
    TRAINING = 4
    EVALUATING = 5  # what lies between an epoch's last micro-step and its end, or follows `CheckpointManager.pause`
    SAVING = 6  # training waits for a save: the capture, the fence, the ranks
    STORAGE = 7  # waits for a write that has to end: the previous save, the final save, an upload
    ENDED = 8  # after the manager was closed: the rest of the script


class _Bank(ctypes.Structure):
    """Holds the current phase and what the earlier ones took."""

    _fields_ = (
        ("phase", ctypes.c_int64),
        ("entered_at", ctypes.c_double),
        ("seconds", ctypes.c_double * len(Phase)),
    )
    phase: int
    entered_at: float
    seconds: ctypes.Array[ctypes.c_double]


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
    bank: int  # which of `banks` counts
    failed_in: int  # phase in which an error or a request to end came
    mirror_lag: int  # commits that the mirror farthest behind lacked at the end of the last micro-step or of training
    opened_at: float  # when the file was made; times are by the monotonic clock
    stepped_at: float  # end of the last micro-step
    sign_at: float  # last progress besides micro-steps, such as a replayed batch
    slowest: float  # seconds of the slowest recent micro-step; one long ago counts less
    committed_seconds: float  # of `Phase.TRAINING` in this attempt when the newest commit was captured
    born_at: float  # birth of the process, or, if it trained before, the present restore
    before: ctypes.Array[ctypes.c_double]  # seconds of each phase until then
    banks: ctypes.Array[_Bank]  # see `phase` and `seconds`
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
        """What the process is doing."""
        return Phase(self.banks[self.bank & 1].phase)

    @property
    def last_phase(self) -> Phase:
        """What the process did when an error or a request to end came, if one did; otherwise what it does."""
        is_ending = self.error or self.category
        return Phase(self.failed_in) if is_ending and self.failed_in in set(Phase) else self.phase

    @property
    def entered_at(self) -> float:
        """When that began, by the monotonic clock."""
        return self.banks[self.bank & 1].entered_at

    @property
    def last_sign_at(self) -> float:
        """The last moment at which the process is known to have got on, by the monotonic clock."""
        return max(self.entered_at, self.stepped_at, self.sign_at)

    def seconds(self, until: float) -> dict[Phase, float]:
        """Return the seconds of each phase from the making of the file up to ``until``, by the monotonic clock."""
        bank = self.banks[self.bank & 1]
        seconds = {phase: bank.seconds[phase] for phase in Phase}
        seconds[Phase(bank.phase)] += max(0.0, until - bank.entered_at)
        return seconds

    def text(self, name: str) -> str:
        """Return one of the texts."""
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
    "ctypes.Array[_Bank]": _Bank * 2,
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
    return record if record.magic == _MAGIC and record.banks[record.bank & 1].phase in set(Phase) else None


def read_records(files: Iterable[Path]) -> list[Record]:
    records = map(read_record, files)
    return sorted((record for record in records if record is not None), key=lambda record: (record.rank, record.pid))


def folder_of_environment() -> Iterator[Path]:
    folder = os.environ.get(VARIABLE)
    if folder:
        yield Path(folder)


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
