"""Connects a `ckptkit.CheckpointManager` to the mirror of its run root.

Guarantees: an attempt is opened over both roots. Where the mirror cannot be reached and is not required, the attempt is
opened at the local root alone, with a prominent warning. The local root's retention spares a checkpoint while it is
being uploaded. `ckptkit.manager.mirroring.uploads` does the uploads. Training thread only, except that the writer calls
`Mirror.offer` and the policies.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ckptkit.checkpoint.commit import read_commit
from ckptkit.core.progress_bar import Countdown
from ckptkit.errors import StorageError, UnusableCheckpointError
from ckptkit.format.documents import Commit
from ckptkit.format.layout import CheckpointName
from ckptkit.manager.mirroring.uploads import Uploads
from ckptkit.manager.options import ERROR_BUDGET, Mirror
from ckptkit.run.attempt import Opened, Opening, Target, open_attempt
from ckptkit.run.keep_policy import AnyKeep, Keepable, KeepPolicy, needs_certificates
from ckptkit.run.mirrored_run import TwoRoots, open_alone, open_mirrored, reach
from ckptkit.run.upload import Uploader
from ckptkit.storage import Storage, is_same_place

_log = logging.getLogger("ckptkit")


class NoMirror:
    """Stands for the absence of a mirror: opens the run root as it is and uploads nothing.

    Args:
        local: The run root.
    """

    lag = 0

    def __init__(self, local: Storage) -> None:
        self.both = local

    def open(self, opening: Opening, target: Target) -> Opened:
        """Open an attempt, as `ckptkit.run.attempt.open_attempt` does."""
        return open_attempt(self.both, opening, target)

    def sparing(self, policy: KeepPolicy) -> KeepPolicy:
        """Return ``policy`` unchanged."""
        return policy

    def has(self, name: CheckpointName) -> bool:
        """Return False: there is no second copy."""
        return False

    def offer(self, name: CheckpointName) -> None:
        """Do nothing."""

    def collect(self, *, tolerate: bool = False) -> None:
        """Do nothing."""

    def settle(self, seconds_left: Countdown) -> None:
        """Do nothing."""

    def finish(self, seconds_left: Countdown) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        """Do nothing."""


class RunMirror:
    """Manages the mirror of one run root during one attempt.

    Args:
        local: The run root.
        options: The user's options.
        keep: What retention keeps at the run root.
        tolerant: Whether a failed upload is a warning.

    Raises:
        ValueError: If both are the same root.
    """

    def __init__(self, local: Storage, options: Mirror, keep: KeepPolicy, *, tolerant: bool) -> None:
        storage = options.storage
        if is_same_place(local.url, storage.url):  # then there would be no second copy
            raise ValueError(f"mirror is the run root itself: {storage.url}")
        self._local = local
        self._storage = storage
        self._keep = options.keep if options.keep is not None else keep
        self._is_required = options.required
        self._tolerant = tolerant
        self._is_away = False
        self._uploads: Uploads | None = None
        self._local_only: set[str] = set()  # commits without the mirror, with the one of the start

    @property
    def both(self) -> Storage:
        """The run as both roots hold it; only the local one if this process goes on without the mirror."""
        return self._local if self._is_away else TwoRoots(self._local, self._storage)

    @property
    def lag(self) -> int:
        """Number of commits since the newest one that is known to be at the mirror; all, if it is away."""
        return self._uploads.lag if self._uploads is not None else len(self._local_only)

    def open(self, opening: Opening, target: Target) -> Opened:
        """Open an attempt and start to upload what the mirror lacks.

        Raises:
            StorageError: If the mirror cannot be reached and is required.
            CkptKitError: As in `ckptkit.run.mirrored_run.open_mirrored`.
        """
        try:
            reach(self._storage)
        except StorageError as error:
            self._go_on_without(error)
            alone = open_alone(self._local, self._storage, opening, target)
            self._local_only = {alone.document.parent} if alone.document.parent is not None else set()
            return alone
        self._is_away = False
        opened = open_mirrored(self._local, self._storage, opening, target)
        uploader = Uploader(self._local, self._storage, opened.document, opened.run_id, self._keep)
        urls = (self._local.url, self._storage.url)
        self._uploads = Uploads(uploader, urls, tries=ERROR_BUDGET, tolerant=self._tolerant)
        self._uploads.begin(CheckpointName.parse(opened.document.parent or ""))
        return opened

    def sparing(self, policy: KeepPolicy) -> KeepPolicy:
        """Return ``policy`` for the local root, extended to keep the checkpoint that is being uploaded."""
        return _Sparing(policy, self)

    def is_under_way(self, name: str) -> bool:
        """Return whether the checkpoint ``name`` is being uploaded."""
        return self._uploads is not None and str(self._uploads.under_way) == name

    def has(self, name: CheckpointName) -> bool:
        """Return whether ``name`` is known to be committed at the mirror; only one that is required counts.

        It is looked for there now, since retention and people remove checkpoints at the mirror, too. Any thread.
        """
        if not self._is_required or self._uploads is None or self.is_under_way(str(name)):
            return False
        try:
            there = read_commit(self._storage, name)
            return isinstance(there, Commit) and there == read_commit(self._local, name)
        except (StorageError, UnusableCheckpointError) as error:
            _log.info("could not see whether %s is at the mirror %s: %s", name, self._storage.url, error)
            return False

    def offer(self, name: CheckpointName) -> None:
        """Tell the uploads about a commit at the local root."""
        if self._uploads is not None:
            self._uploads.offer(name)
        else:
            self._local_only.add(str(name))

    def collect(self, *, tolerate: bool = False) -> None:
        """Do the same as `Uploads.collect`."""
        if self._uploads is not None:
            self._uploads.collect(tolerate=tolerate)

    def settle(self, seconds_left: Countdown) -> None:
        """Wait for the newest commit's upload as `Uploads.settle` does; a failed upload is tried once more."""
        if self._uploads is not None:
            self._uploads.settle(seconds_left)
            if self._uploads.try_again():
                self._uploads.settle(seconds_left)

    def finish(self, seconds_left: Countdown) -> None:
        """Do the same as `Uploads.finish`."""
        if self._uploads is not None:
            self._uploads.finish(seconds_left)

    def abandon(self) -> None:
        """Do the same as `Uploads.abandon`."""
        if self._uploads is not None:
            self._uploads.abandon()

    def _go_on_without(self, error: StorageError) -> None:
        if self._is_required:
            raise StorageError(
                f"the mirror {self._storage.url} cannot be reached: {error}. Only the mirror shows whether another "
                "process has this run, so nothing was started. Mirror(..., required=False) starts anyway, with the "
                "local root alone."
            ) from error
        self._is_away = True
        rule = "=" * 78
        _log.warning(
            "%s\nNO MIRROR: %s cannot be reached: %s\n  This process trains with %s alone: nothing is uploaded, newer "
            "checkpoints at the mirror are not seen,\n  and another process with this mirror may start the same "
            "run.\n%s",
            *(rule, self._storage.url, error, self._local.url, rule),
        )


@dataclass(frozen=True)
class _Sparing:
    """Keeps what ``policy`` keeps and the checkpoint that is being uploaded."""

    policy: KeepPolicy
    mirror: RunMirror

    @property
    def needs_metrics(self) -> bool:
        return self.policy.needs_metrics

    @property
    def needs_certificates(self) -> bool:
        return needs_certificates(self.policy)

    def keeps(self, checkpoints: Sequence[Keepable]) -> frozenset[str]:
        under_way = {one.name for one in checkpoints if self.mirror.is_under_way(one.name)}
        return self.policy.keeps(checkpoints) | under_way

    def __or__(self, other: KeepPolicy) -> KeepPolicy:
        return AnyKeep((self, other))
