"""Uploads commits beside training, in one thread that gives way to training; always takes the newest one.

Guarantees: an offered commit is uploaded unless a newer one is offered first or the upload fails; one that comes too
soon after the last upload waits until the next is offered, or until `Uploads.finish`. A failure is logged,
tried again with the next commit, and reported to the training thread on request. An upload that has begun ends before
the interpreter exits, successfully or not, unless it was abandoned. The thread lives only while there is work. If no
thread can be started (from Python 3.12 on, an interpreter that is exiting starts none), the caller's thread uploads.
Any thread may call `Uploads.offer`; the other methods are for the training thread.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol

from ckptkit.core.progress_bar import Countdown, LongWait, countdown
from ckptkit.core.text import many
from ckptkit.core.worker import Latch, NoThreadError, Worker, awaited
from ckptkit.errors import SaveFailedError, StaleAttemptError, StorageError
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.background import NotEndedError, account_of, warn_of_failure
from ckptkit.manager.process.at_exit import AT_EXIT
from ckptkit.run.upload import UploadOutcome, UploadPace

_log = logging.getLogger("ckptkit")
_GLANCE_SECONDS = 0.5
_MUCH_LAG = 10  # this many commits during one upload


class Uploading(Protocol):
    """Does the uploads: `ckptkit.run.upload.Uploader`, or a replacement in tests."""

    size_bytes: int
    done_bytes: int
    pace: UploadPace

    def upload(self, name: CheckpointName) -> UploadOutcome:
        """Upload ``name`` to the mirror; raises whatever prevents it."""
        ...

    def sweep(self) -> bool:
        """Remove what earlier attempts left there, after the first upload; return whether some stays."""
        ...

    def hurry(self) -> None:
        """Wait at most a few more seconds for other ranks; any thread may call this."""
        ...


class Uploads:
    """Manages the uploads of one attempt.

    Args:
        uploader: Does the uploads.
        urls: URLs of the local root and of the mirror, for messages.
        tries: How often `finish` tries an upload, the first time included.
        tolerant: Whether a failed upload is a warning; otherwise the next `collect` raises it.
        prepare: Called before each upload; may wait.
        every: Upload a commit only if the last upload began at least this long ago; `finish` does not wait for that.
        monotonic: Returns the time in seconds.
    """

    def __init__(
        self,
        uploader: Uploading,
        urls: tuple[str, str],
        *,
        tries: int,
        tolerant: bool,
        prepare: Callable[[], None] = lambda: None,
        every: timedelta = timedelta(0),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._uploader = uploader
        self._local_url, self._mirror_url = urls
        self._tries = tries
        self._tolerant = tolerant
        self._prepare = prepare
        self._every_seconds = every.total_seconds()
        self._monotonic = monotonic
        self._due_at = monotonic()  # before it, a commit waits for the next one
        self._lock = threading.Lock()
        self._idle = Latch()  # another one for each time that the thread runs
        self._idle.open()
        self._worker: Worker | None = None
        self._waiting: CheckpointName | None = None
        self._under_way: CheckpointName | None = None
        self._sweep_now = False
        self._sweep_due = True
        self._behind: list[CheckpointName] = []  # committed at the local root and not known to be at the mirror
        self._last: CheckpointName | None = None
        self._tell_lag = _MUCH_LAG
        self._failures_in_a_row = 0
        self._given_up: CheckpointName | None = None
        self._void: CheckpointName | None = None  # the mirror can never receive it
        self._error: BaseException | None = None  # error of the last upload, until one succeeds
        self._untold: BaseException | None = None
        self._stale: StaleAttemptError | None = None
        self._abandoned = self._is_hurried = self._is_urgent = False
        _finish_at_exit(self)

    @property
    def lag(self) -> int:
        """Number of commits since the newest one that is known to be at the mirror."""
        return len(self._behind)

    @property
    def under_way(self) -> CheckpointName | None:
        """Checkpoint that is being uploaded."""
        return self._under_way

    def begin(self, parent: CheckpointName | None) -> None:
        """Upload the checkpoint that the attempt began with, if the mirror lacks it; then sweep there."""
        with self._lock:
            self._behind = [] if parent is None else [parent]
            self._waiting = parent
            self._sweep_now = True
        self._wake()

    def offer(self, name: CheckpointName, *, to_upload: bool = True) -> None:
        """Upload ``name``, the newest commit, next; drops one that still waits.

        One that was uploaded is looked for at the mirror, and uploaded again if it is not there.

        Args:
            name: The commit.
            to_upload: Whether to upload it; otherwise it only counts as one that the mirror lacks.
        """
        with self._lock:
            if self._stale is not None:
                return
            if name not in self._behind:
                self._behind.append(name)
            if not to_upload:
                return
            self._waiting = name
            stuck, lag = self._under_way, len(self._behind)
        if stuck is not None and lag >= self._tell_lag:
            self._tell_lag = 10 * lag
            _log.warning(
                "the mirror %s is %s behind, because the upload of %s has not ended. They are committed at "
                "%s, and the newest is uploaded next. Check whether the mirror answers (`ckptkit ls %s`)",
                *(self._mirror_url, many(lag, "commit"), stuck, self._local_url, self._mirror_url),
            )
        if self._is_due:
            self._wake()

    @property
    def is_busy(self) -> bool:
        """Whether an upload is under way or waiting."""
        return not self._idle.is_open

    @property
    def may_begin(self) -> bool:
        """Whether a commit that is offered now is uploaded at once."""
        return self._idle.is_open and self._is_due

    @property
    def _is_due(self) -> bool:
        return self._monotonic() >= self._due_at

    def collect(self, *, tolerate: bool = False) -> None:
        """Raise what the training thread must know.

        Args:
            tolerate: Discard the failure of an upload.

        Raises:
            StaleAttemptError: If another process took over the run at the mirror; at each call.
            SaveFailedError: If an upload failed and that is not tolerated; once.
        """
        if self._stale is not None:
            raise self._stale
        error, self._untold = self._untold, None
        if error is not None and not (tolerate or self._tolerant):
            raise self._lacking(error) from error

    def settle(self, seconds_left: Countdown) -> None:
        """Wait until no upload is under way or waiting.

        Raises:
            TimeoutError: If the time runs out; the uploads go on.
        """
        if self._idle.is_open:
            return
        with awaited(), LongWait(f"uploading to the mirror {self._mirror_url}", self._uploader.size_bytes) as wait:
            while not self._idle.wait(min(_GLANCE_SECONDS, seconds_left())):
                if not seconds_left():
                    raise NotEndedError(f"the upload to {self._mirror_url} has not ended in time; it continues")
                if self._worker is not None and self._worker.is_lost:  # a second Ctrl-C, or a forked child
                    self._give_up_start(self._worker)
                wait.reach(self._uploader.done_bytes)

    def try_again(self, *, given_up: bool = False) -> bool:
        """Upload the newest commit if it is not at the mirror; returns whether that was necessary.

        Args:
            given_up: Also if `finish` has given it up.
        """
        with self._lock:
            if not self._behind or self._stale is not None or self._behind[-1] == self._void:
                return False
            if not given_up and (self._behind[-1] == self._given_up or not self._is_due):
                return False
            self._waiting = self._behind[-1]
            self._due_at = self._monotonic()
        self._wake()
        return True

    def finish(self, seconds_left: Countdown) -> None:
        """Wait until the newest commit is at the mirror; retries, but only once for a commit that was given up.

        Raises:
            TimeoutError: As in `settle`.
            SaveFailedError: If the upload to the mirror fails.
            StaleAttemptError: As in `collect`.
        """
        self.urge()
        self.settle(seconds_left)
        for number in range(1 if self._behind[-1:] == [self._given_up] else self._tries - 1):
            if (number > 0 or self._is_hurried) and isinstance(self._error, SaveFailedError):
                break  # another rank's part is missing: that rank has had its time twice
            if not self.try_again(given_up=True):
                break
            self.settle(seconds_left)
        self._uploader.pace.restore()
        self._is_urgent = False
        self.collect(tolerate=True)
        if self._behind and self._error is not None:
            self._given_up = self._behind[-1]
            raise self._lacking(self._error) from self._error

    def urge(self) -> None:
        """Upload the newest commit now if it only waits for its time, and as fast as possible; does not wait."""
        self._uploader.pace.lift()
        self._is_urgent = True
        if not self.is_busy and self._error is None:
            self.try_again(given_up=True)

    def hurry(self) -> None:
        """Wait at most a few more seconds for other ranks, and do not wait for a missing part again."""
        self._is_hurried = True
        self._uploader.hurry()

    def abandon(self) -> None:
        """Let the interpreter exit without waiting for an upload; it is completed or removed by a later start."""
        self._abandoned = True

    def _wake(self) -> None:
        # Daemon: the interpreter joins other threads before it runs exit handlers, and a save may still come then.
        worker = Worker(self._run, "ckptkit-mirror", gives_way=not self._is_urgent)
        try:
            with self._lock:
                if not self._idle.is_open:
                    return
                self._worker = worker
                self._idle = Latch()
            worker.start()
        except NoThreadError:
            if worker.take_back():
                self._run()
        except BaseException:  # Ctrl-C: nobody else knows whether the thread runs
            self._give_up_start(worker)
            raise

    def _give_up_start(self, worker: Worker) -> None:
        """Clear the state of an upload whose thread could not be started, so that no call waits for it."""
        with self._lock:
            if self._worker is worker and worker.take_back():
                self._idle.open()

    def _run(self) -> None:
        try:
            while self._take():
                try:
                    self._prepare()
                    if self._under_way is not None:
                        self._succeed(self._under_way, self._uploader.upload(self._under_way))
                except BaseException as error:  # noqa: BLE001 - every error belongs to the training thread
                    self._fail(self._under_way, error)
                else:
                    self._sweep()
        except BaseException as error:  # noqa: BLE001 - likewise, such as an error while making a message
            self._error = self._untold = error
            self._idle.open()  # otherwise a thread that waits for this one would wait forever

    def _take(self) -> bool:
        with self._lock:
            sweep_now, self._sweep_now = self._sweep_now, False
            self._under_way = None
            if self._is_due:
                self._under_way, self._waiting = self._waiting, None
            if self._under_way is not None:
                self._due_at = self._monotonic() + self._every_seconds
            if self._under_way is not None or sweep_now:
                return True
            self._idle.open()
            return False

    def _sweep(self) -> None:
        if not self._sweep_due:
            return
        try:
            self._sweep_due = self._uploader.sweep()
        except StaleAttemptError as error:
            self._stale = error
        except BaseException as error:  # noqa: BLE001 - costs space only, and no caller would see it
            _log.warning("could not yet remove what earlier attempts left at %s: %s", self._mirror_url, error)

    def _succeed(self, name: CheckpointName, outcome: UploadOutcome) -> None:
        with self._lock:
            if self._waiting == name:
                self._waiting = None  # it was offered again meanwhile
            self._last = name
            self._failures_in_a_row, self._error, self._untold = 0, None, None  # a later success cancels a failure
            if outcome == "void":
                self._void = name
                self._error = StorageError("an attempt abandoned it half uploaded there, so it can never be completed")
            elif outcome == "gone":
                self._behind.remove(name)
            else:
                place = self._behind.index(name)
                skipped, self._behind = self._behind[:place], self._behind[place + 1 :]
        if outcome == "void":
            _log.warning(
                "%s can no longer be stored at the mirror %s, because an attempt abandoned it half uploaded there. "
                "It is committed at %s, and the next commit will be uploaded.",
                *(name, self._mirror_url, self._local_url),
            )
        elif outcome == "copied":
            after = f", {len(skipped)} older ones were not" if skipped else ""
            _log.info("%s is uploaded to the mirror %s%s", name, self._mirror_url, after)

    def _fail(self, name: CheckpointName | None, error: BaseException) -> None:
        if isinstance(error, StaleAttemptError):
            self._stale = error
            return
        self._failures_in_a_row += 1
        self._due_at = self._monotonic()
        self._error = self._untold = error
        warn_of_failure(
            error,
            "the upload of %s to the mirror %s failed (%d in a row): %s; it stays committed at %s, and training "
            "continues. The next commit is uploaded in its place; the mirror is %s behind",
            *(
                name,
                self._mirror_url,
                self._failures_in_a_row,
                account_of(error),
                self._local_url,
                many(self.lag, "commit"),
            ),
        )

    def _lacking(self, error: BaseException) -> SaveFailedError:
        newest = self._behind[-1] if self._behind else self._last
        way_on = (
            "Continue the training, which uploads its next checkpoint, or give a new mirror"
            if newest == self._void
            else "Start the same job again once the mirror can be written; it uploads the checkpoint"
        )
        return SaveFailedError(
            f"{newest} is committed at {self._local_url}, but the mirror {self._mirror_url} lacks it: {error}. "
            f"{way_on}; until then keep the local root."
        )


def _finish_at_exit(uploads: Uploads) -> None:
    """Wait for uploads under way at interpreter exit; saves that end then may still offer one."""
    reference = weakref.ref(uploads)

    def finish() -> None:
        there = reference()
        if there is not None and not there._abandoned:
            there._uploader.pace.lift()
            there._uploader.hurry()
            there.settle(countdown(None))

    # Added before any save's callback, so it runs after them.
    AT_EXIT.add(finish)
    weakref.finalize(uploads, AT_EXIT.discard, finish).atexit = False
