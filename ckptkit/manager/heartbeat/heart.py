"""Shows ``ckptkit run`` what this process does; without a supervisor it does nothing at all.

Guarantees: a micro-step costs about a microsecond and no system call. Nothing here fails training: if the file cannot
be made, a warning says so and nothing is shown. A forked process shows nothing. Only under a supervisor, and only from
the first restore on, a signal writes the Python stacks of all threads to a file beside it, and so does a crash, unless
the program has enabled `faulthandler` itself. Training thread only, except `Heart.committed`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ckptkit.format.events import plain_line
from ckptkit.manager.heartbeat.category import category_of
from ckptkit.manager.heartbeat.record import (
    ENDING,
    SIZE_BYTES,
    STACKS_ENDING,
    Phase,
    Record,
    folder_of_environment,
    new_record,
)

_log = logging.getLogger("ckptkit")

STACKS_SIGNAL = signal.SIGRTMIN + 7  # no launcher or framework is known to use it
_FADES = 0.998  # of the slowest micro-step, with every further one: a half after 350
_UNKNOWN_RANK = -1


class Heart:
    """Writes the heartbeat of this process; the only instance is `HEART`.

    Args:
        monotonic: Gives seconds.
        wall: Gives seconds since the epoch.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._wall = wall
        self._record: Record | None = None
        self._training = False
        self._tried = False
        self._stacks = -1

    @property
    def beats(self) -> bool:
        """Whether a supervisor watches this process."""
        return self._record is not None

    def begin(self) -> None:
        """Show from now on what this process does, if a supervisor has asked for it; the run is being restored."""
        if not self._tried:
            self._tried = True
            for folder in folder_of_environment():
                self._open(folder)
        if self._record is not None:
            for name in ("how", "error", "category", "message", "data"):
                self._record.put(name, "")
        self.enter(Phase.RESTORING)

    def restored(
        self, *, root: str, attempt: int, checkpoint: str | None, micro_step: int, rank: int, ranks: int
    ) -> None:
        """Show which run continues from where; the first micro-step follows."""
        record = self._record
        if record is None:
            return
        record.rank, record.ranks, record.attempt = rank, ranks, attempt
        record.restored_step = record.micro_step = record.begun_step = micro_step
        record.committed_step, record.committed_seconds = -1, 0.0
        record.put("root", root)
        record.put("checkpoint", checkpoint or "")
        self.enter(Phase.FIRST_STEP)

    def reads(self, data: str, epoch_size: int) -> None:
        """Show which data is read, and how many batches an epoch has."""
        if self._record is not None:
            self._record.put("data", data)
            self._record.epoch_size = epoch_size

    def begin_step(self) -> None:
        """Show that the next batch has been delivered."""
        record = self._record
        if record is not None:
            record.begun_step = record.micro_step + 1

    def step(self, micro_step: int) -> None:
        """Show that a micro-step has ended, after ``micro_step`` batches; the same one may be told again."""
        record = self._record
        if record is None:
            return
        if not self._training:
            self.enter(Phase.TRAINING)
        elif micro_step != record.micro_step:
            took = self._monotonic() - max(record.stepped_at, record.entered_at)
            record.slowest = max(took, record.slowest * _FADES)
        if micro_step != record.micro_step:
            record.micro_step = record.begun_step = micro_step
            record.stepped_wall = self._wall()
            record.stepped_at = self._monotonic()

    def sign(self) -> None:
        """Show that a phase without micro-steps gets on."""
        if self._record is not None:
            self._record.sign_at = self._monotonic()

    def enter(self, phase: Phase) -> None:
        """Begin ``phase``."""
        record = self._record
        if record is None:
            return
        self._training = phase is Phase.TRAINING
        now, wall = self._monotonic(), self._wall()
        old, new = record.banks[record.bank], record.banks[1 - record.bank]
        for one in Phase:
            new.seconds[one] = old.seconds[one]
        new.seconds[old.phase] += max(0.0, now - old.entered_at)
        new.phase, new.entered_at, new.entered_wall = phase, now, wall
        record.bank = 1 - record.bank  # only now: who is killed before has not entered it

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Enter ``phase``, and return to the present one at the end."""
        record = self._record
        if record is None:
            yield
            return
        before = record.phase
        self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    @contextlib.contextmanager
    def meeting(self) -> Iterator[None]:
        """Show that this process waits for the other ranks."""
        record = self._record
        if record is not None:
            record.is_meeting = 1
        try:
            yield
        finally:
            if record is not None:
                record.is_meeting = 0

    @property
    def training_seconds(self) -> float:
        """Seconds of `Phase.TRAINING` until now; 0 without a supervisor."""
        return 0.0 if self._record is None else self._record.seconds(self._monotonic())[Phase.TRAINING]

    def committed(self, micro_step: int, training_seconds: float) -> None:
        """Show that a checkpoint of ``micro_step`` was committed; its writer's thread may call this."""
        if self._record is not None:
            self._record.committed_seconds = training_seconds
            self._record.committed_step = micro_step

    def fail(self, error: BaseException) -> None:
        """Show the error that ends training; the first one counts."""
        record = self._record
        if record is None or record.error:
            return
        record.failed_in = record.phase
        record.put("message", plain_line(str(error)))
        record.put("category", category_of(error))
        record.put("error", type(error).__name__)

    def end(self, how: str) -> None:
        """Show that training has ended; the rest of the script follows."""
        if self._record is not None:
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
        record.pid, record.rank = os.getpid(), _rank_of_environment()
        record.opened_at, record.opened_wall = self._monotonic(), self._wall()
        for bank in record.banks:
            bank.entered_at, bank.entered_wall = record.opened_at, record.opened_wall
        self._record = record
        os.register_at_fork(after_in_child=self._forget)
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=self._stacks, all_threads=True)

    def _forget(self) -> None:
        self._record = None


def _rank_of_environment() -> int:
    text = os.environ.get("RANK_ID", "")
    return int(text) if text.isascii() and text.isdigit() else _UNKNOWN_RANK


HEART = Heart()
