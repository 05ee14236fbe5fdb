"""Connects a run root to its mirrors: beside training, the newest commit is uploaded to each of them.

An attempt is opened over the root and all mirrors; one that cannot be reached and is not required is left out, with a
prominent warning. Each mirror has a thread of its own, which gives way to training and lives only while there is work.
An upload that failed is logged, tried again with the next commit, and reported to the training thread on request; one
that has begun ends before the interpreter exits, unless it was abandoned. The root's retention spares what is being
uploaded. In a job of many ranks all ranks upload the same checkpoints: each its own part, if all of them have time for
it. Training thread only, except that the writer calls `Chain.offer` and the policies.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from itertools import combinations

from ckptkit.checkpoint.commit import read_commit
from ckptkit.core.contents import Contents
from ckptkit.core.text import many
from ckptkit.core.waiting import Countdown, LongWait, Patience, countdown
from ckptkit.core.worker import NoThreadError, Worker, awaited
from ckptkit.errors import ResumeError, SaveFailedError, StaleAttemptError, StorageError, UnusableCheckpointError
from ckptkit.format.documents import Commit
from ckptkit.format.layout import ATTEMPTS, CheckpointName
from ckptkit.manager.agreement import RankSync
from ckptkit.manager.heartbeat import HEARTBEAT, Phase
from ckptkit.manager.options import ERROR_BUDGET, Mirror, System
from ckptkit.manager.process import AT_EXIT, LastCall
from ckptkit.manager.writer import NotEndedError, account_of, warn_of_failure
from ckptkit.run.attempt import Leader, Opened, Opening, open_attempt
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.run.root_and_mirrors import Homes, open_homes
from ckptkit.run.upload import Uploader, UploadOutcome, UploadPace
from ckptkit.storage import RootLock, Storage, is_inside, is_same_place

_log = logging.getLogger("ckptkit")
OPTIONAL_PATIENCE = timedelta(seconds=30)
_GLANCE_SECONDS = 0.5
_MUCH_LAG = 10  # this many commits during one upload


class Uploads:
    """Uploads the commits of one attempt to one mirror; if ``tolerant``, `collect` raises no failure."""

    def __init__(self, mirror: Mirror, local: Storage, uploader: Uploader, *, tolerant: bool) -> None:
        self.mirror = mirror
        self._local_url, self._mirror_url = local.url, mirror.storage.url
        self._uploader, self._tolerant, self._monotonic = uploader, tolerant, uploader.pace.monotonic
        self._root_lock = RootLock(local)  # of its own, because each thread opens it
        self._due_at = self._monotonic()  # before it, a commit waits for the next one
        self._lock = threading.Lock()
        self._worker: Worker | None = None  # another one for each time that there is work
        self._waiting: CheckpointName | None = None
        self.under_way: CheckpointName | None = None
        self.behind: list[CheckpointName] = []  # committed at the local root and not known to be at the mirror
        self._warn_at_lag = _MUCH_LAG
        self._failures_in_a_row = 0
        self._given_up: CheckpointName | None = None
        self._error: BaseException | None = None  # error of the last upload, until one succeeds
        self._unreported: BaseException | None = None
        self._stale: StaleAttemptError | None = None
        self._patience = None if mirror.required else OPTIONAL_PATIENCE
        self.last_call = LastCall(self._finish_at_exit)  # before any save's callback, so it runs after them

    def offer(self, name: CheckpointName, *, to_upload: bool = True) -> None:
        """Upload ``name``, the newest commit, next; drops one that still waits. Any thread.

        One that was uploaded is looked for at the mirror, and uploaded again if it is not there. Without ``to_upload``,
        it only counts as one that the mirror lacks.
        """
        with self._lock:
            if self._stale is not None:
                return
            if name not in self.behind:
                self.behind.append(name)
            if not to_upload:
                return
            self._waiting = name
            stuck, lag = self.under_way, len(self.behind)
        if stuck is not None and lag >= self._warn_at_lag:
            self._warn_at_lag = 10 * lag
            _log.warning(
                "the mirror %s is %s behind, because the upload of %s has not ended. They are committed at "
                "%s, and the newest is uploaded next. Check whether the mirror answers (`ckptkit ls %s`)",
                *(self._mirror_url, many(lag, "commit"), stuck, self._local_url, self._mirror_url),
            )
        if self._is_due:
            self._wake()

    @property
    def may_begin(self) -> bool:
        return self._worker is None and self._is_due

    @property
    def _is_due(self) -> bool:
        return self._monotonic() >= self._due_at

    def collect(self, *, tolerate: bool = False) -> None:
        if self._stale is not None:
            raise self._stale
        error, self._unreported = self._unreported, None
        newest = self.behind[-1:]  # the thread may upload it now
        if error is not None and newest and not (tolerate or self._tolerant):
            raise self._lacking(newest[0], error) from error

    def settle(self, seconds_left: Countdown) -> None:
        wait = LongWait(f"uploading to the mirror {self._mirror_url}", self._uploader.size_bytes)
        with awaited():
            while (worker := self._worker) is not None:
                if not worker.wait(min(_GLANCE_SECONDS, seconds_left())) and not seconds_left():
                    raise NotEndedError(f"the upload to {self._mirror_url} has not ended in time; it continues")
                if worker.is_lost:  # a second Ctrl-C, or a forked child
                    self._give_up_start(worker)
                wait.reach(self._uploader.done_bytes)

    def try_again(self, *, given_up: bool = False) -> bool:
        """Upload the newest commit if it is not at the mirror; return whether that was necessary."""
        with self._lock:
            if not self.behind or self._stale is not None:
                return False
            if not given_up and (self.behind[-1] == self._given_up or not self._is_due):
                return False
            self._waiting = self.behind[-1]
            self._due_at = self._monotonic()
        self._wake()
        return True

    def finish(self, seconds_left: Countdown) -> None:
        """Wait, after `urge`, until the newest commit is at the mirror; retries, but one that was given up only once.

        Afterwards other programs may upload from the root. A mirror that is not required gets `OPTIONAL_PATIENCE` at
        most, and its failure is a warning.
        """
        own_seconds_left = countdown(self._patience)
        tries = 2 if self.behind[-1:] == [self._given_up] else ERROR_BUDGET
        try:
            for number in range(tries):
                self.settle(lambda: min(own_seconds_left(), seconds_left()))
                is_last = number + 1 == tries
                if isinstance(self._error, SaveFailedError):  # another rank's part is missing: it has its time twice
                    is_last = number > 0 or self._uploader.patience.is_short
                if is_last or not self.try_again(given_up=True):
                    break
            self._uploader.pace.restore()
            self.collect(tolerate=True)
            if self.behind and self._error is not None:
                self._given_up = self.behind[-1]
                raise self._lacking(self._given_up, self._error) from self._error
        except (SaveFailedError, NotEndedError) as error:
            if self.mirror.required:
                raise
            self._patience = timedelta(0)
            _log.warning("the mirror is not required, so the end does not wait for it any more: %s", error)
        finally:
            if self._worker is None:
                self._root_lock.release()

    def urge(self) -> None:
        """Upload the newest commit now if it only waits for its time, and as fast as possible; does not wait."""
        self._uploader.pace.lift()
        if self._worker is None and self._error is None:
            self.try_again(given_up=True)

    def _finish_at_exit(self) -> None:
        self._uploader.pace.lift()
        self._uploader.patience.hurry()
        self.settle(countdown(None))

    def _wake(self) -> None:
        # Daemon: the interpreter joins other threads before it runs exit handlers, and a save may still come then.
        worker = Worker(self._run, "ckptkit-mirror", gives_way=True)
        try:
            with self._lock:
                if self._worker is not None:
                    return
                self._worker = worker
            worker.start()
        except NoThreadError:
            if worker.take_back():
                self._run()
        except BaseException:  # Ctrl-C: nobody else knows whether the thread runs
            self._give_up_start(worker)
            raise

    def _give_up_start(self, worker: Worker) -> None:
        """Let no call wait for an upload whose thread could not be started."""
        with self._lock:
            if self._worker is worker and worker.take_back():
                self._worker = None

    def _run(self) -> None:
        try:
            while (name := self._take()) is not None:
                try:
                    self._root_lock.share()  # what another program uploads for the run's last start ends first
                    self._succeed(name, self._uploader.upload(name))
                except BaseException as error:  # noqa: BLE001 - every error belongs to the training thread
                    self._fail(name, error)
        except BaseException as error:  # noqa: BLE001 - likewise, such as an error while making a message
            self._error = self._unreported = error
            self._worker = None  # otherwise a thread that waits for this one would wait forever

    def _take(self) -> CheckpointName | None:
        with self._lock:
            self.under_way = None
            if self._is_due:
                self.under_way, self._waiting = self._waiting, None
            if self.under_way is None:
                self._worker = None
            else:
                self._due_at = self._monotonic() + self.mirror.every.total_seconds()
            return self.under_way

    def _succeed(self, name: CheckpointName, outcome: UploadOutcome) -> None:
        with self._lock:
            if self._waiting == name:
                self._waiting = None  # it was offered again meanwhile
            self._failures_in_a_row, self._error, self._unreported = 0, None, None  # a later success cancels a failure
            if outcome == "void":
                self._given_up = name
                self._error = StorageError("an attempt abandoned it half uploaded there, so it can never be completed")
                _log.warning("%s can no longer be stored at the mirror %s: %s", name, self._mirror_url, self._error)
                return
            place = self.behind.index(name)
            skipped, self.behind = self.behind[:place], self.behind[place + 1 :]
        if outcome == "copied":
            after = f", {len(skipped)} older ones were not" if skipped else ""
            _log.info("%s is uploaded to the mirror %s%s", name, self._mirror_url, after)

    def _fail(self, name: CheckpointName, error: BaseException) -> None:
        if isinstance(error, StaleAttemptError):
            self._stale = error
            return
        self._failures_in_a_row += 1
        self._due_at = self._monotonic()
        self._error = self._unreported = error
        warn_of_failure(
            error,
            "the upload of %s to the mirror %s failed (%d in a row): %s; it stays committed at %s, and training "
            "continues. The next commit is uploaded in its place; the mirror is %s behind",
            *(name, self._mirror_url, self._failures_in_a_row, account_of(error)),
            *(self._local_url, many(len(self.behind), "commit")),
        )

    def _lacking(self, newest: CheckpointName, error: BaseException) -> SaveFailedError:
        return SaveFailedError(
            f"{newest} is committed at {self._local_url}, but the mirror {self._mirror_url} lacks it: {error}. Start "
            "the same job again once the mirror can be written: it uploads this checkpoint or its next one. Or give a "
            "new mirror. Until then keep the local root."
        )


class Chain:
    """Manages the mirrors of one run root during one attempt; without mirrors it only opens the root."""

    def __init__(
        self, local: Storage, mirrors: Sequence[Mirror], keep: KeepPolicy, *, tolerant: bool, system: System
    ) -> None:
        self._local, self._mirrors, self._keep = local, mirrors, keep
        self.exists = bool(mirrors)
        self._tolerant, self._monotonic = tolerant, system.monotonic
        self._present, self._away = [*mirrors], list[Mirror]()  # those that this process uses, or works without
        self._uploads: list[Uploads] = []  # to each of them, once the attempt is open
        self._unsent: list[CheckpointName] = []  # what a mirror that is away lacks
        self._agreed: dict[CheckpointName, Sequence[bool]] = {}  # of many ranks: which mirrors a commit is uploaded to
        self._is_alone = True
        for home, other in combinations([storage.url for storage in self.homes], 2):
            if is_same_place(home, other) or is_inside(home, other) or is_inside(other, home):
                raise ValueError(
                    f"{home} and {other} are the same place, or one lies in the other, so there would be no second "
                    "copy of the run. Give the mirror a folder of its own. A home is known by its URL: at different "
                    "endpoints, give one of them another bucket or folder"
                )

    @property
    def everywhere(self) -> Storage:
        """The run over all its homes, except the mirrors that this process works without."""
        return Homes(self.homes) if self._present else self._local

    @property
    def lag(self) -> int:
        """Number of commits since the newest one that is known to be at every mirror."""
        return max([len(self._unsent), *(len(uploads.behind) for uploads in self._uploads)])

    def reach(self, rank_sync: RankSync) -> None:
        """Find out which mirrors can be used; a collective in a job of many ranks, also without mirrors."""
        own = {mirror.storage.url: _fault_of(mirror.storage) for mirror in self._mirrors}
        mine = json.dumps({url: fault and (str(fault) or type(fault).__name__) for url, fault in own.items()})
        first, *_ = by_rank = [*map(json.loads, rank_sync.gather(mine))]
        faults: dict[str, str] = {}  # of the mirrors that are away in some rank
        for rank, theirs in enumerate(by_rank):
            if [*theirs] != [*first]:
                raise ResumeError(
                    f"rank {rank} has the mirrors {', '.join(theirs) or 'none'}, but rank 0 has "
                    f"{', '.join(first) or 'none'}. Give all ranks the same mirror=. Nothing was started"
                )
            prefix = "" if rank_sync.is_alone else f"rank {rank}: "
            faults = {url: f"{prefix}{fault}" for url, fault in theirs.items() if fault} | faults
        self._present = [mirror for mirror in self._mirrors if mirror.storage.url not in faults]
        self._away = [mirror for mirror in self._mirrors if mirror.storage.url in faults]
        for mirror in self._away:
            what = f"{mirror.storage.url} cannot be reached: {faults[mirror.storage.url]}"
            if mirror.required:
                raise StorageError(
                    f"the mirror {what}. Only the mirror shows whether another process has this run, so nothing was "
                    "started. Mirror(..., required=False) starts anyway, without this mirror."
                ) from own[mirror.storage.url]
            _log.warning(
                "NO MIRROR: %s. THIS PROCESS TRAINS WITH %s ALONE: nothing is uploaded there, newer checkpoints there "
                "are not seen, and another process with this mirror may start the same run",
                *(what, " and ".join(home.url for home in self.homes)),
            )

    def open(self, opening: Opening, leader: Leader) -> Opened | Contents:
        if not self.exists:
            return open_attempt(self._local, opening, leader)
        return open_homes(self.homes, [mirror.storage.url for mirror in self._away], opening, leader)

    def begin(self, opened: Opened, rank_sync: RankSync, patience: Patience) -> None:
        """Start to upload what the mirrors lack; call this once the root was swept.

        A checkpoint that is being copied back to the root would be taken for the remains of a dead save.
        """
        self._is_alone = rank_sync.is_alone
        parent = CheckpointName.parse(opened.document.parent or "")
        self._unsent = [parent] if parent is not None and self._away else []
        self._uploads = []
        for mirror in self._present:
            keep = mirror.keep if mirror.keep is not None else self._keep
            pace = UploadPace(mirror.bandwidth, monotonic=self._monotonic)
            uploader = Uploader(
                self.homes, mirror.storage, opened, keep, patience, pace=pace, rank=rank_sync.rank, ranks=rank_sync.size
            )
            # An error of one rank's upload would end that rank alone; the end of the training raises it.
            tolerant = self._tolerant or not mirror.required or not rank_sync.is_alone
            self._uploads.append(Uploads(mirror, self._local, uploader, tolerant=tolerant))
        if parent is not None and rank_sync.leads:
            for uploads in self._uploads:
                uploads.offer(parent)

    @property
    def free(self) -> tuple[bool, ...]:
        """For each mirror, whether this rank would upload a commit to it at once."""
        return tuple(uploads.may_begin for uploads in self._uploads)

    def agree(self, name: CheckpointName, free: Sequence[Sequence[bool]], *, is_final: bool) -> None:
        """Let all ranks upload ``name`` to the mirrors for which each is ``free``; to all if nothing follows."""
        if not self._is_alone:
            agreed = [is_final or all(of_ranks) for of_ranks in zip(*free, strict=True)]
            last = [*self._agreed.items()][-1:]  # its writer may not have offered it yet
            self._agreed = {**dict(last), name: agreed}

    def is_under_way(self, name: CheckpointName) -> bool:
        return any(uploads.under_way == name for uploads in self._uploads)

    def has(self, name: CheckpointName) -> bool:
        """Return whether ``name`` is known to be committed at a mirror that is required.

        It is looked for there now, since retention and people remove checkpoints at mirrors, too. Any thread.
        """
        if self.is_under_way(name):
            return False
        for mirror in [uploads.mirror.storage for uploads in self._uploads if uploads.mirror.required]:
            try:
                there = read_commit(mirror, name)
                if isinstance(there, Commit) and there == read_commit(self._local, name):
                    return True
            except (StorageError, UnusableCheckpointError) as error:
                _log.info("could not see whether %s is at the mirror %s: %s", name, mirror.url, error)
        return False

    def offer(self, name: CheckpointName) -> None:
        """Tell the uploads about a commit at the run root."""
        if self._away and name not in self._unsent:
            self._unsent.append(name)
        agreed = self._agreed.get(name, [self._is_alone] * len(self._uploads))
        for uploads, to_upload in zip(self._uploads, agreed, strict=True):
            uploads.offer(name, to_upload=to_upload)

    def collect(self, *, tolerate: bool = False) -> None:
        for uploads in self._uploads:
            uploads.collect(tolerate=tolerate)

    def settle(self, seconds_left: Countdown) -> None:
        with HEARTBEAT.during(Phase.STORAGE):
            for uploads in self._uploads:
                uploads.settle(seconds_left)
                if self._is_alone and uploads.try_again():  # many ranks upload only what they have agreed on
                    uploads.settle(seconds_left)

    def finish(self, seconds_left: Countdown) -> None:
        """Do the same as `Uploads.finish` for every mirror at once, then raise the first failure."""
        failure: Exception | None = None
        self.urge()
        with HEARTBEAT.during(Phase.STORAGE):
            for uploads in sorted(self._uploads, key=lambda uploads: not uploads.mirror.required):
                try:
                    uploads.finish(seconds_left)
                except (SaveFailedError, NotEndedError) as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def urge(self) -> None:
        for uploads in self._uploads:
            uploads.urge()

    def abandon(self) -> None:
        """Let the exit wait for no upload; a later start completes or removes what is half uploaded."""
        for uploads in self._uploads:
            AT_EXIT.discard(uploads.last_call)

    @property
    def urls(self) -> list[str]:
        """The mirrors that a program finds by their URL alone."""
        plain = [mirror for mirror in self._mirrors if isinstance(mirror.root, str | os.PathLike)]
        return [mirror.storage.url for mirror in plain if not mirror.storage_options]

    @property
    def homes(self) -> list[Storage]:
        """The run root and the mirrors that this process uses, the nearest first."""
        return [self._local, *(mirror.storage for mirror in self._present)]


def _fault_of(mirror: Storage) -> Exception | None:
    try:
        mirror.probe()
        mirror.list(ATTEMPTS)
    except (StorageError, OSError) as error:  # in one rank alone, the others would wait for its word
        return error
    return None
