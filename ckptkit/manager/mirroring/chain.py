"""Connects a `ckptkit.CheckpointManager` to the mirrors of its run root.

Guarantees: an attempt is opened over the root and all mirrors. Where a mirror cannot be reached and is not required,
the attempt is opened without it, with a prominent warning. Each mirror has its own uploads, so a slow or absent one
does not delay the others. The root's retention spares a checkpoint while it is being uploaded. In a job of many ranks
all ranks upload the same checkpoints: each its own part, if all of them have time for it.
`ckptkit.manager.mirroring.uploads` does the uploads. Training thread only, except that the writer calls `Chain.offer`
and the policies.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ckptkit.checkpoint.commit import read_commit
from ckptkit.core.contents import Contents
from ckptkit.core.progress_bar import Countdown, countdown
from ckptkit.errors import ResumeError, SaveFailedError, StorageError, UnusableCheckpointError
from ckptkit.format.documents import Commit
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.background import NotEndedError
from ckptkit.manager.mirroring.uploads import Uploading, Uploads
from ckptkit.manager.options import ERROR_BUDGET, Mirror
from ckptkit.manager.rank_sync import RankSync
from ckptkit.run.attempt import Opened, Opening, Target, open_attempt
from ckptkit.run.homes import Homes, open_homes, reach
from ckptkit.run.keep_policy import AnyKeep, Keepable, KeepPolicy, needs_certificates
from ckptkit.run.upload import PartUploader, Uploader, UploadPace
from ckptkit.storage import RootLock, Storage, is_inside, is_same_place

_log = logging.getLogger("ckptkit")
_ENDPOINTS = "At different endpoints, give one of them another bucket or folder: a home is known by its URL"
OPTIONAL_PATIENCE = timedelta(seconds=30)


@dataclass(eq=False)
class _Follower:
    """Holds one mirror during one attempt."""

    options: Mirror
    lock: RootLock  # held by what uploads to it; of its own, because each thread opens it
    uploads: Uploads | None = None  # None while it is away
    is_given_up: bool = False  # the end of the training does not wait for it any more

    @property
    def storage(self) -> Storage:
        return self.options.storage

    def patience(self, seconds_left: Countdown) -> Countdown:
        """Return how long the end of the training waits for a mirror that is not required."""
        mine = countdown(timedelta(0) if self.is_given_up else OPTIONAL_PATIENCE)
        return lambda: min(mine(), seconds_left())


class Chain:
    """Manages the mirrors of one run root during one attempt; without mirrors it only opens the root.

    Args:
        local: The run root.
        mirrors: The user's options, the nearest mirror first.
        keep: What retention keeps at the run root.
        tolerant: Whether a failed upload is a warning.
        monotonic: Returns the time in seconds.

    Raises:
        ValueError: If two of these places are the same, or one lies in the other.
    """

    def __init__(
        self,
        local: Storage,
        mirrors: Sequence[Mirror],
        keep: KeepPolicy,
        *,
        tolerant: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._local = local
        self._followers = [_Follower(options, RootLock(local)) for options in mirrors]
        self._keep = keep
        self._tolerant, self._monotonic = tolerant, monotonic
        self._present: list[_Follower] = list(self._followers)
        self._commits: set[str] = set()  # of this attempt, with the one of the start
        self._agreed: dict[CheckpointName, Sequence[bool]] = {}  # of many ranks: which mirrors a commit is uploaded to
        self._is_alone, self._is_ending = True, False
        self._refuse_same_places()

    @property
    def exists(self) -> bool:
        """Whether the run has any mirror."""
        return bool(self._followers)

    @property
    def everywhere(self) -> Storage:
        """The run over all its homes, except the mirrors that this process works without."""
        return Homes(self.homes) if self._present else self._local

    @property
    def lag(self) -> int:
        """Number of commits since the newest one that is known to be at every mirror."""
        return max(map(self._lag_of, self._followers)) if self._followers else 0

    def reach(self, rank_sync: RankSync) -> None:
        """Find out which mirrors can be used; a collective in a job of many ranks, also without mirrors.

        Raises:
            ResumeError: If the ranks have different mirrors.
            StorageError: If a required mirror cannot be reached from some rank.
        """
        if rank_sync.is_alone and not self.exists:
            return
        own = [_fault_of(one.storage) for one in self._followers]
        said = [[one.storage.url, str(fault or "")] for one, fault in zip(self._followers, own, strict=True)]
        each = [json.loads(one) for one in rank_sync.say(json.dumps(said))]
        for rank, theirs in enumerate(each):
            if (urls := [url for url, _ in theirs]) != (first := [url for url, _ in each[0]]):
                raise ResumeError(
                    f"rank {rank} has the mirrors {', '.join(urls) or 'none'}, but rank 0 has "
                    f"{', '.join(first) or 'none'}. Give all ranks the same mirror=. Nothing was started"
                )
        faults: list[str] = []
        for number, one in enumerate(self._followers):
            one.uploads, one.is_given_up = None, False
            told = [(f"rank {rank}: " if each[1:] else "", theirs[number][1]) for rank, theirs in enumerate(each)]
            faults.append(next((who + fault for who, fault in told if fault), ""))
        away = [one for one, fault in zip(self._followers, faults, strict=True) if fault]
        self._present = [one for one in self._followers if one not in away]
        for one, fault, cause in zip(self._followers, faults, own, strict=True):
            if fault:
                self._go_on_without(one, fault, cause, away)

    def open(self, opening: Opening, target: Target) -> Opened | Contents:
        """Open an attempt; call `reach` first.

        Raises:
            CkptKitError: As in `ckptkit.run.homes.open_homes`.
        """
        if not self.exists:
            return open_attempt(self._local, opening, target)
        away = [one.storage.url for one in self._followers if one not in self._present]
        return open_homes(self.homes, away, opening, target)

    def begin(self, opened: Opened, rank_sync: RankSync, patience: timedelta) -> None:
        """Start to upload what the mirrors lack; call this once the root was swept.

        A checkpoint that is being copied back to the root would be taken for the remains of a dead save.

        Args:
            opened: The attempt.
            rank_sync: The ranks of the job.
            patience: How long ranks wait for each other.
        """
        self._is_alone, self._is_ending = rank_sync.is_alone, False
        parent = CheckpointName.parse(opened.document.parent or "")
        self._commits = {str(parent)} if parent is not None else set()
        bringer = self._bringer_of(parent) if rank_sync.leads else None
        for one in self._present:
            pace = UploadPace(one.options.bandwidth, monotonic=self._monotonic)
            if rank_sync.leads:
                uploader: Uploading = Uploader(
                    self.homes,
                    one.storage,
                    opened.document,
                    opened.run_id,
                    one.options.keep if one.options.keep is not None else self._keep,
                    brings_home=one is bringer,
                    ranks=rank_sync.size,
                    patience=patience,
                    monotonic=self._monotonic,
                    pace=pace,
                )
            else:
                uploader = PartUploader(
                    self._local,
                    one.storage,
                    opened.document,
                    rank_sync.rank,
                    patience,
                    monotonic=self._monotonic,
                    pace=pace,
                )
            one.uploads = Uploads(
                uploader,
                (self._local.url, one.storage.url),
                tries=ERROR_BUDGET,
                # An error of one rank's upload would end that rank alone; the end of the training raises it.
                tolerant=self._tolerant or not one.options.required or not rank_sync.is_alone,
                prepare=one.lock.share,  # what another program uploads for the run's last start ends first
                every=one.options.every,
                monotonic=self._monotonic,
            )
            one.uploads.begin(parent if rank_sync.leads else None)

    @property
    def free(self) -> list[bool]:
        """For each mirror, whether this rank would upload a commit to it at once."""
        return [uploads.may_begin for uploads in self._uploads]

    def agree(self, name: CheckpointName, free: Sequence[Sequence[bool]], *, is_final: bool) -> None:
        """Let all ranks upload ``name`` to the mirrors for which each of them is free; to all if it is the last one.

        Args:
            name: The checkpoint.
            free: What `free` is in each rank.
            is_final: Whether nothing follows.
        """
        if not self._is_alone:
            agreed = [is_final or all(each) for each in zip(*free, strict=True)]
            last = [*self._agreed.items()][-1:]  # its writer may not have offered it yet
            self._agreed = {**dict(last), name: agreed}

    def sparing(self, policy: KeepPolicy) -> KeepPolicy:
        """Return ``policy`` for the run root, extended to keep the checkpoints that are being uploaded."""
        return _Sparing(policy, self) if self.exists else policy

    def is_under_way(self, name: str) -> bool:
        """Return whether the checkpoint ``name`` is being uploaded."""
        return any(str(uploads.under_way) == name for uploads in self._uploads)

    def has(self, name: CheckpointName) -> bool:
        """Return whether ``name`` is known to be committed at a mirror that is required.

        It is looked for there now, since retention and people remove checkpoints at mirrors, too. Any thread.
        """
        if self.is_under_way(str(name)):
            return False
        return any(self._has(one, name) for one in self._present if one.options.required and one.uploads is not None)

    def _has(self, one: _Follower, name: CheckpointName) -> bool:
        try:
            there = read_commit(one.storage, name)
            return isinstance(there, Commit) and there == read_commit(self._local, name)
        except (StorageError, UnusableCheckpointError) as error:
            _log.info("could not see whether %s is at the mirror %s: %s", name, one.storage.url, error)
            return False

    def offer(self, name: CheckpointName) -> None:
        """Tell the uploads about a commit at the run root."""
        if len(self._present) < len(self._followers):
            self._commits.add(str(name))
        agreed = self._agreed.get(name, [self._is_alone] * len(self._present))
        for uploads, to_upload in zip(self._uploads, agreed, strict=True):
            uploads.offer(name, to_upload=to_upload)

    def collect(self, *, tolerate: bool = False) -> None:
        """Do the same as `Uploads.collect` for every mirror."""
        for uploads in self._uploads:
            uploads.collect(tolerate=tolerate)

    def settle(self, seconds_left: Countdown) -> None:
        """Wait for the uploads as `Uploads.settle` does; a failed one is tried once more."""
        if self._is_ending:
            return  # `finish` follows, and waits for each mirror as that deserves
        for uploads in self._uploads:
            uploads.settle(seconds_left)
            if self._is_alone and uploads.try_again():  # many ranks upload only what they have agreed on
                uploads.settle(seconds_left)

    def finish(self, seconds_left: Countdown) -> None:
        """Do the same as `Uploads.finish` for every mirror at once, then raise the first failure.

        A mirror that is not required comes last, gets `OPTIONAL_PATIENCE` at most, and its failure is a warning.
        Afterwards other programs may upload from the root.
        """
        failure: Exception | None = None
        self.end(is_given_up=False)
        for one in sorted(self._present, key=lambda one: not one.options.required):
            if one.uploads is None:
                continue
            try:
                one.uploads.finish(seconds_left if one.options.required else one.patience(seconds_left))
            except (SaveFailedError, NotEndedError) as error:
                if one.options.required:
                    failure = failure or error
                else:
                    one.is_given_up = True
                    _log.warning("the mirror is not required, so the end does not wait for it any more: %s", error)
            if not one.uploads.is_busy:
                one.lock.release()
        self._is_ending = False
        if failure is not None:
            raise failure

    def end(self, *, is_given_up: bool) -> None:
        """Upload the newest commit everywhere, as fast as possible; `finish` follows unless that was given up."""
        self._is_ending = not is_given_up
        for uploads in self._uploads if self._is_ending else ():
            uploads.urge()

    def hurry(self) -> None:
        """Do the same as `Uploads.hurry` for every mirror: this rank ends because of an error."""
        for uploads in self._uploads:
            uploads.hurry()

    def abandon(self) -> None:
        """Do the same as `Uploads.abandon` for every mirror."""
        for uploads in self._uploads:
            uploads.abandon()

    @property
    def urls(self) -> list[str]:
        """The mirrors that a program finds by their URL alone."""
        plain = (one.options for one in self._followers if not one.options.storage_options)
        return [one.storage.url for one in plain if isinstance(one.root, str | os.PathLike)]

    @property
    def homes(self) -> list[Storage]:
        """The run root and the mirrors that this process uses, the nearest first."""
        return [self._local, *(one.storage for one in self._present)]

    @property
    def _uploads(self) -> list[Uploads]:
        return [one.uploads for one in self._present if one.uploads is not None]

    def _lag_of(self, one: _Follower) -> int:
        return one.uploads.lag if one.uploads is not None else len(self._commits)

    def _bringer_of(self, parent: CheckpointName | None) -> _Follower | None:
        """Return the nearest mirror that has ``parent``, if the root lacks it."""
        if parent is None or not self._present or Homes([self._local]).copies(parent):
            return None
        for one in self._present:
            try:
                if Homes([one.storage]).copies(parent):
                    return one
            except StorageError as error:  # the attempt is open: nothing depends on what comes back
                _log.info("could not see whether %s is at the mirror %s: %s", parent, one.storage.url, error)
        return None

    def _refuse_same_places(self) -> None:
        urls = [self._local.url]
        for url in [one.storage.url for one in self._followers]:
            if is_same_place(self._local.url, url):  # then there would be no second copy
                raise ValueError(f"mirror is the run root itself: {url}. {_ENDPOINTS}")
            if any(is_same_place(other, url) for other in urls):
                raise ValueError(f"two mirrors are the same place: {url}. {_ENDPOINTS}")
            near = [other for other in urls if is_inside(url, other) or is_inside(other, url)]
            if near:
                raise ValueError(
                    f"of {near[0]} and {url}, one lies in the other, so removing that folder removes both copies of "
                    "the run. Give the mirror a folder of its own"
                )
            urls.append(url)

    def _go_on_without(self, one: _Follower, error: str, cause: StorageError | None, away: Sequence[_Follower]) -> None:
        if one.options.required:
            raise StorageError(
                f"the mirror {one.storage.url} cannot be reached: {error}. Only the mirror shows whether another "
                "process has this run, so nothing was started. Mirror(..., required=False) starts anyway, without "
                "this mirror."
            ) from cause
        others = [self._local.url, *(other.storage.url for other in self._followers if other not in away)]
        rule = "=" * 78
        _log.warning(
            "%s\nNO MIRROR: %s cannot be reached: %s\n  This process trains with %s alone: nothing is uploaded there, "
            "newer checkpoints there are not seen,\n  and another process with this mirror may start the same "
            "run.\n%s",
            *(rule, one.storage.url, error, " and ".join(others), rule),
        )


def _fault_of(mirror: Storage) -> StorageError | None:
    """Return why the mirror cannot be used; None if it can."""
    try:
        reach(mirror)
    except StorageError as error:
        return error
    except OSError as error:  # in one rank alone, the others would wait for its word
        return StorageError(f"could not look at {mirror.url}: {error}")
    return None


@dataclass(frozen=True)
class _Sparing:
    """Keeps what ``policy`` keeps and the checkpoints that are being uploaded."""

    policy: KeepPolicy
    chain: Chain

    @property
    def needs_metrics(self) -> bool:
        return self.policy.needs_metrics

    @property
    def needs_certificates(self) -> bool:
        return needs_certificates(self.policy)

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        under_way = {one.name for one in checkpoints if self.chain.is_under_way(one.name)}
        return self.policy.keeps(checkpoints) | under_way

    def __or__(self, other: KeepPolicy) -> KeepPolicy:
        return AnyKeep((self, other))
