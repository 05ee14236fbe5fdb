"""Lays out the file in which a training process shows ``ckptkit run`` what it does, and reads it.

``CKPTKIT_HEARTBEAT`` names a folder. A process that restores a run there maps one file of fixed size into its memory
and writes fields of it; the supervisor reads the file while the process lives, and after its death. Nothing is ever
flushed: the kernel keeps what a process killed by SIGKILL has written.

Guarantees: what is read is the state at some moment, except that a micro-step and its time may be of two
neighbouring micro-steps. The seconds of the phases are never counted twice, also if the process dies while it enters
one. Both sides run on one machine, with one monotonic clock. Any thread.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path

VARIABLE = "CKPTKIT_HEARTBEAT"
ENDING = ".heartbeat"
STACKS_ENDING = ".stacks"
MIRRORS_BYTES = 2048
_MAGIC = 0x636B70746B697431  # "ckptkit1"


class Phase(IntEnum):
    """Says what a training process is doing.

    The time before a file exists is that of `STARTING`: the interpreter, imports, the user's code up to the restore.
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
    """Represents the file of one process; -1 is an unknown number, and no text an unknown text.

    Attributes:
        pid: The process.
        rank: Its rank.
        ranks: Ranks of the job.
        opened_at: When the file was made, by the monotonic clock.
        micro_step: Batches delivered when the last micro-step ended, counted from the run's first start.
        begun_step: The same number of the last micro-step whose batch has been delivered.
        stepped_at: End of the last micro-step, by the monotonic clock.
        sign_at: Last progress besides micro-steps, such as a replayed batch.
        slowest: Seconds of the slowest recent micro-step; one long ago counts less.
        is_meeting: 1 while the process waits for words of the other ranks.
        restored_step: Batches delivered in the checkpoint that was restored; 0 for a fresh start.
        committed_step: Batches delivered in the newest checkpoint that this life committed.
        committed_seconds: Seconds of `Phase.TRAINING` in this attempt when that one was captured.
        mirror_lag: Commits that the mirror farthest behind lacked at the end of the last micro-step or of training.
        attempt: Number of the attempt.
        trainings: How many attempts the process has begun.
        born_at: When what belongs to the present one began, by the monotonic clock: at the birth of the process, or, if
            it trained before, at the restore.
        before: Seconds of each phase until then.
        epoch_size: Batches of an epoch.
        banks: Phases; see `phase` and `seconds`.
        bank: Which of them counts.
        root: URL of the run root.
        mirrors: URLs of its mirrors, one per line, without those that cannot be found by a URL alone.
        checkpoint: The checkpoint that was restored; empty for a fresh start.
        how: ``finished``, ``closed``, ``failed``, ``preempted`` or ``complete``, once the manager was closed, and
            ``exited`` if Python ended before that.
        failed_in: Number of the phase in which an error or a request to end came.
        error: Class of the error with which the manager was closed.
        message: Its first line; without an error, why training was asked to end.
        category: What the error means for the next start, or who asked; see `ckptkit.manager.heartbeat.category`.
        data: What the pipeline reads, for people.
    """

    _fields_ = (
        ("magic", ctypes.c_uint64),
        *((name, ctypes.c_int64) for name in ("pid", "rank", "ranks", "micro_step", "begun_step", "is_meeting")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "restored_step",
                "committed_step",
                "attempt",
                "trainings",
                "epoch_size",
                "bank",
                "failed_in",
                "mirror_lag",
            )
        ),
        *((name, ctypes.c_double) for name in ("opened_at", "stepped_at", "sign_at", "slowest")),
        *((name, ctypes.c_double) for name in ("committed_seconds", "born_at")),
        ("before", ctypes.c_double * len(Phase)),
        ("banks", _Bank * 2),
        ("root", ctypes.c_char * 1024),
        ("mirrors", ctypes.c_char * MIRRORS_BYTES),
        ("checkpoint", ctypes.c_char * 128),
        ("how", ctypes.c_char * 32),
        ("error", ctypes.c_char * 256),
        ("category", ctypes.c_char * 32),
        ("message", ctypes.c_char * 1024),
        ("data", ctypes.c_char * 1024),
    )
    magic: int
    pid: int
    rank: int
    ranks: int
    micro_step: int
    begun_step: int
    is_meeting: int
    restored_step: int
    committed_step: int
    attempt: int
    trainings: int
    epoch_size: int
    bank: int
    failed_in: int
    mirror_lag: int
    opened_at: float
    stepped_at: float
    sign_at: float
    slowest: float
    committed_seconds: float
    born_at: float
    before: ctypes.Array[ctypes.c_double]
    banks: ctypes.Array[_Bank]
    root: bytes
    mirrors: bytes
    checkpoint: bytes
    how: bytes
    error: bytes
    category: bytes
    message: bytes
    data: bytes

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
        found = {phase: bank.seconds[phase] for phase in Phase}
        found[Phase(bank.phase)] += max(0.0, until - bank.entered_at)
        return found

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


SIZE_BYTES = ctypes.sizeof(Record)


def new_record(memory: memoryview | bytearray) -> Record:
    """Return a record that lies in ``memory``, with nothing known."""
    record = Record.from_buffer(memory)
    for name in ("rank", "ranks", "micro_step", "begun_step", "restored_step", "committed_step", "attempt"):
        setattr(record, name, -1)
    record.epoch_size = -1
    record.magic = _MAGIC
    return record


def read_record(path: Path) -> Record | None:
    """Return the record in the file; None if there is none yet, or it is none of this version."""
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
    """Return the records that lie in ``files``, by rank."""
    found = map(read_record, files)
    return sorted((one for one in found if one is not None), key=lambda one: (one.rank, one.pid))


def folder_of_environment() -> Iterator[Path]:
    """Yield the folder that a supervisor has named, if one has."""
    folder = os.environ.get(VARIABLE)
    if folder:
        yield Path(folder)
