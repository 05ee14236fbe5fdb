"""Records what this process does, and shows it to ``ckptkit run`` if that supervises it.

Guarantees: a micro-step costs some microseconds and no system call. Nothing here fails training: if the file cannot
be made, a warning says so and nothing is shown. A forked process shows nothing. Only under a supervisor, and only from
the first restore on, a signal writes the Python stacks of all threads to a file beside it, and so does a crash, unless
the program has enabled `faulthandler` itself. Training thread only, except `committed` and `request`.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from ckptkit.core.text import message_of
from ckptkit.format.events import PhaseName, plain_line
from ckptkit.manager.heartbeat.category import Request, category_of
from ckptkit.manager.heartbeat.process_start import process_start
from ckptkit.manager.heartbeat.record import (
    ENDING,
    MIRRORS_BYTES,
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
_NAMES: Mapping[Phase, PhaseName] = dict(zip(Phase, get_args(PhaseName), strict=True))  # in the same order


class HeartbeatWriter:
    """Writes the heartbeat of this process; the only instance is `HEARTBEAT`.

    Args:
        monotonic: Gives seconds.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._record: Record | None = None
        self._is_shown = False
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
        """Keep account from now on, and show it if a supervisor has asked for it; the run is being restored.

        Args:
            monotonic: Gives seconds from now on; a supervisor compares them with its own.
        """
        if not self._tried:
            self._tried = True
            os.register_at_fork(after_in_child=self._forget)
            for folder in folder_of_environment():
                self._open(folder)
        if self._record is None:
            self._record = new_record(bytearray(SIZE_BYTES))
        if not self._is_shown:
            self._monotonic = monotonic
        self._begin_life()
        if self._is_shown and self._record is not None:
            for name in ("how", "error", "category", "message", "data"):
                self._record.put(name, "")
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
        if record is None:
            return
        record.rank, record.ranks, record.attempt = rank, ranks, attempt
        record.restored_step = record.micro_step = record.begun_step = micro_step
        record.committed_step, record.committed_seconds, record.mirror_lag = -1, 0.0, 0
        record.trainings += 1
        record.born_at = self.born
        for one in Phase:
            record.before[one] = self._before.get(one, 0.0)
        record.put("root", root)
        told = "\n".join(mirrors)
        fits = len(told.encode(errors="surrogatepass")) < MIRRORS_BYTES
        record.put("mirrors", told if fits else "")  # half a URL is another one
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

    def step(self, micro_step: int, mirror_lag: int | None = None) -> None:
        """Show that a micro-step has ended, after ``micro_step`` batches; the same one may be told again."""
        record = self._record
        if record is None or (self._training and not self._is_shown):  # only `ckptkit run` reads what follows
            return
        if mirror_lag is not None:
            record.mirror_lag = mirror_lag
        if not self._training:
            self.enter(Phase.TRAINING)
        elif micro_step != record.micro_step:
            took = self._monotonic() - max(record.stepped_at, record.entered_at)
            record.slowest = max(took, record.slowest * _FADES)
        if micro_step != record.micro_step:
            record.micro_step = record.begun_step = micro_step
            record.stepped_at = self._monotonic()

    def sign(self) -> None:
        """Show progress in a phase without micro-steps."""
        if self._record is not None:
            self._record.sign_at = self._monotonic()

    def enter(self, phase: Phase) -> None:
        """Begin ``phase``."""
        record = self._record
        if record is None:
            return
        self._training = phase is Phase.TRAINING
        now = self._monotonic()
        old, new = record.banks[record.bank], record.banks[1 - record.bank]
        for one in Phase:
            new.seconds[one] = old.seconds[one]
        new.seconds[old.phase] += max(0.0, now - old.entered_at)
        new.phase, new.entered_at = phase, now
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

    def spent(self) -> dict[PhaseName, float]:
        """Return the seconds since `born`, by phase."""
        if self._record is None:
            return {}
        now = self._monotonic()
        found = self._record.seconds(now)
        grown: dict[PhaseName, float] = {_NAMES[one]: found[one] - self._before.get(one, 0.0) for one in Phase}
        rest = now - self.born - sum(grown.values())
        return {
            name: seconds for name, seconds in {**grown, "starting": grown["starting"] + rest}.items() if seconds > 0
        }

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
        record.put("message", plain_line(message_of(error)))
        record.put("category", category_of(error))
        record.put("error", type(error).__name__)

    def request(self, request: Request, why: str) -> None:
        """Show that training was asked to end; the thread that hears signals may call this."""
        record = self._record
        if record is not None and not record.error:
            record.failed_in = record.phase
            record.put("message", plain_line(why))
            record.put("category", request)

    def end(self, how: str, mirror_lag: int = 0) -> None:
        """Show that training has ended; the rest of the script follows."""
        if self._record is not None:
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
        record.pid, record.rank = os.getpid(), _rank_of_environment()
        record.opened_at = self._monotonic()
        for bank in record.banks:
            bank.entered_at = record.opened_at
        self._record = record
        self._is_shown = True
        atexit.register(self._exit)
        faulthandler.register(STACKS_SIGNAL, file=self._stacks, all_threads=True)
        if not faulthandler.is_enabled():
            faulthandler.enable(file=self._stacks, all_threads=True)

    def _exit(self) -> None:
        """Show that Python got to its end, which a process that is killed does not."""
        if self._record is not None and not self._record.how:
            self._record.put("how", "exited")

    def _begin_life(self) -> None:
        """Begin the account of one attempt; the first one of a process has the time since the process's birth.

        A restore that failed began none, so that its time belongs to the next attempt.
        """
        now, record = self._monotonic(), self._record
        is_first = record is None or record.trainings == 0
        birth = process_start() if is_first and self._monotonic is time.monotonic else None
        self._born = now if birth is None else min(birth, now)
        if record is not None:
            if not self._is_shown:
                record.banks[record.bank & 1].entered_at = now  # it may have been another clock's
            self._before = record.seconds(now)

    def _forget(self) -> None:
        self._record, self._born, self._is_shown = None, None, False


def _rank_of_environment() -> int:
    text = os.environ.get("RANK_ID", "")
    return int(text) if text.isascii() and text.isdigit() else _UNKNOWN_RANK


HEARTBEAT = HeartbeatWriter()
