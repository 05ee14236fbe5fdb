"""Uploads committed checkpoints from the local root to one of its mirrors, one at a time.

The order is that of `ckptkit.run.saver`. A checkpoint committed at the mirror is whole, and its lineage can be followed
there. Each rank uploads its part and confirms it with a receipt; rank 0 commits there, last and once. Any thread, one
at a time.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Literal

from ckptkit.checkpoint.commit import make_durable, read_commit
from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint, open_part
from ckptkit.checkpoint.receipts import Receipts, failure_key, post, post_failure, receipt_of
from ckptkit.checkpoint.transfer import Transfer
from ckptkit.core.waiting import Patience
from ckptkit.core.worker import Latch
from ckptkit.errors import (
    CheckpointNotFoundError,
    CkptKitError,
    CorruptCheckpointError,
    SaveFailedError,
    StaleAttemptError,
    StorageError,
)
from ckptkit.format.documents import Commit, Void, encode
from ckptkit.format.layout import CHECKPOINTS, FROZEN, CheckpointName
from ckptkit.run.attempt import Opened
from ckptkit.run.index import Documents
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.run.ownership import check_fence
from ckptkit.run.retention import Retention, sweep
from ckptkit.run.root_and_mirrors import Homes, share_documents
from ckptkit.storage import Storage
from ckptkit.storage.capacity import limit_at
from ckptkit.storage.local_files import has_no_room

UploadOutcome = Literal["copied", "present", "void"]

_TRIES = 3  # as many as an upload gets at the end of a training; below them, a bucket repeats each request
_LONGER = 3  # ranks store about as much as each other, but not every way to a mirror is equally fast
_FIRST_PAUSE = timedelta(milliseconds=50)
_LONGEST_PAUSE = timedelta(seconds=1)
_log = logging.getLogger("ckptkit")


class UploadPace:
    """Makes its caller wait until the bytes so far are within a rate; any thread may lift the bound."""

    def __init__(self, bytes_per_second: int | None, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bytes_per_second = bytes_per_second
        self.monotonic = monotonic
        self._lifted = Latch()
        self._free_at = monotonic()

    def spend(self, size_bytes: int) -> None:
        if self._bytes_per_second is None or self._lifted.is_open:
            return
        now = self.monotonic()
        self._free_at = max(now, self._free_at) + size_bytes / self._bytes_per_second
        self._lifted.wait(self._free_at - now)

    def lift(self) -> None:
        self._lifted.open()

    def restore(self) -> None:
        self._lifted = Latch()


class Uploader:
    """Uploads checkpoints of one rank's attempt to one mirror: rank 0 commits them there, any other its parts alone.

    Without a ``policy`` nothing is removed. Counts the bytes of the current upload, else of the last one, and remembers
    the files that are proven there.
    """

    def __init__(
        self,
        homes: Sequence[Storage],
        mirror: Storage,
        opened: Opened,
        policy: KeepPolicy | None,
        patience: Patience,
        *,
        pace: UploadPace,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self._homes, self._local, self._mirror = homes, homes[0], mirror
        self._attempt, self._run_id = opened.document, opened.run_id
        self.patience, self.pace, self._monotonic = patience, pace, pace.monotonic
        self._rank, self._ranks = rank, ranks
        self._brings_home = rank == 0 and mirror is homes[1]
        self._receipts = Receipts(mirror, ranks, self.patience, monotonic=self._monotonic)
        self._retention = None if policy is None else Retention(mirror, self._attempt, policy)
        self._begun: set[CheckpointName] = set()  # which may lie there by half
        self._is_swept = False
        self._proven: set[str] = set()
        self.size_bytes = self.done_bytes = 0

    def upload(self, name: CheckpointName) -> UploadOutcome:
        """Bring ``name`` to the mirror; rank 0 commits it there, then applies retention."""
        leads = self._rank == 0
        if self._brings_home:
            self._bring_home(name)
        if check_fence(self._mirror, self._attempt, put_back=self._run_id if leads else None):
            share_documents(self._local, self._mirror, range(1, self._attempt.attempt))  # somebody removed some
        if not (leads or self._is_committed(name)):
            return "present"  # rank 0 has given it up, so that nothing is lacking
        there = read_commit(self._mirror, name)
        if there is not None:
            if leads:  # who alone removes what is there
                make_durable(self._mirror, name.commit_key, encode(there))
                self._tidy(name)
            return "void" if isinstance(there, Void) else "present"
        try:
            if leads:
                self._copy_from_any(name, self._mirror, self._copy)
            else:
                self._copy_part(name)
        except CkptKitError as error:
            # A later attempt may have swept the uploaded files; then StaleAttemptError is the error to raise.
            with contextlib.suppress(StorageError):
                self._check_fence()
                own = leads and name.attempt == self._attempt.attempt  # no half of it is from an earlier attempt
                if own and isinstance(error, StorageError) and has_no_room(error):
                    self._tidy(name)  # what earlier uploads have left may be what fills it
            raise
        self._proven = {key for key in self._proven if key.startswith(f"{FROZEN}/")}  # the others are not shared
        if leads:
            self._check_fence()  # a start that looked there before COMMIT does not know of it
            self._tidy(name, is_new=True)
        return "copied"

    def _tidy(self, name: CheckpointName, *, is_new: bool = False) -> None:
        """Remove what nobody needs beside ``name``: what the policy does not keep, and what was half uploaded."""
        if self._retention is None:
            return
        given_up, self._begun = self._begun - {name}, self._begun & {name}
        try:
            if is_new:
                self._retention.prune(name)
            if given_up or not self._is_swept:
                sweep(self._mirror, self._attempt, has_mirror=True, given_up=given_up)
                self._is_swept = True
        except StaleAttemptError:
            raise
        except Exception as error:  # noqa: BLE001 - even a keep policy may raise: the upload itself is done
            _log.warning(
                "older files at the mirror %s could not be removed: %s",
                *(self._mirror.url, error),
                exc_info=None if isinstance(error, StorageError) else error,
            )

    def _check_fence(self) -> None:
        check_fence(self._mirror, self._attempt)

    def _count(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes
        self.pace.spend(size_bytes)

    def _copy_from_any(
        self, name: CheckpointName, target: Storage, copy: Callable[[Storage, OpenedCheckpoint], object]
    ) -> None:
        """Copy ``name`` to ``target`` from the nearest home that has it whole; raise the first error if none has."""
        own = name.attempt == self._attempt.attempt
        document = self._attempt if own else Documents(Homes(self._homes)).document(name.attempt)
        failed: list[CkptKitError] = []
        for home in self._homes:
            try:
                if home is not target:
                    copy(home, open_checkpoint(home, name, document))
                    return
            except (CheckpointNotFoundError, CorruptCheckpointError) as error:
                failed.append(error)
        raise failed[0]

    def _bring_home(self, name: CheckpointName) -> None:
        """Copy ``name`` to the local root if that has lost it, so that the next start reads it there."""
        self._brings_home = False
        for tries_left in reversed(range(_TRIES)):
            try:
                if read_commit(self._local, name) is None:  # void: a start has given up the remains of such a copy
                    self._copy_from_any(name, self._local, self._copy_home)
                    _log.info("%s is back at %s", name, self._local.url)
            except CkptKitError as error:
                if tries_left and isinstance(error, StorageError):
                    continue
                _log.warning(
                    "could not copy %s back to %s: %s. It stays at the mirror, where the next start reads it",
                    *(name, self._local.url, str(error).rstrip(".")),
                )
                with contextlib.suppress(StorageError):  # the root may be short of room; else the next start does it
                    sweep(self._local, self._attempt, has_mirror=True)
            return

    def _copy_home(self, source: Storage, opened: OpenedCheckpoint) -> None:
        # In memory, with room for the next save beside it: that one matters more.
        limit_at(self._local, CHECKPOINTS).expect(2 * opened.size_bytes, f"{opened.name} and the next save")
        self.size_bytes, self.done_bytes = opened.size_bytes, 0
        transfer = Transfer(source, self._local, opened)
        transfer.compare()
        transfer.finish(self._count, before_commit=lambda: check_fence(self._local, self._attempt))

    def _copy(self, source: Storage, opened: OpenedCheckpoint) -> None:
        """Upload the part of rank 0, and commit once the others are there; all parts of what another attempt saved."""
        self._begun.add(opened.name)
        self.size_bytes, self.done_bytes = opened.size_bytes, 0
        has_help = self._ranks > 1 and opened.name.attempt == self._attempt.attempt
        begun = self._monotonic()

        def await_parts() -> None:
            own = receipt_of(opened.name, opened.ranks[0], opened.manifest.rank_files[0])
            least_seconds = _LONGER * (self._monotonic() - begun)
            self._receipts.collect(opened.name, own, self._check_fence, least_seconds=least_seconds)

        transfer = Transfer(source, self._mirror, opened, self._proven, rank=0 if has_help else None)
        transfer.compare(self._count)
        transfer.finish(self._count, before_commit=self._check_fence, others=await_parts if has_help else None)
        self._begun.discard(opened.name)

    def _is_committed(self, name: CheckpointName) -> bool:
        """Wait until rank 0 has committed ``name`` at the run root, or given it up."""
        begun, pause = self._monotonic(), _FIRST_PAUSE
        while True:
            there = read_commit(self._local, name)
            if there is not None:
                return isinstance(there, Commit)
            if self._monotonic() - begun >= self.patience.seconds():
                raise SaveFailedError(f"rank 0 has not committed {name} at {self._local.url}, so no part was uploaded")
            time.sleep(pause.total_seconds())  # nothing here learns of what rank 0 writes
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    def _copy_part(self, name: CheckpointName) -> None:
        """Upload this rank's part, without a request for each rank of the job.

        A frozen shard that two ranks share is uploaded by the lower one, so the others' documents are read once for it.
        """
        opened = open_part(self._local, name, self._attempt, self._rank)
        frozen = {shard.key for shard in opened.ranks[self._rank].shards if shard.key.startswith(f"{FROZEN}/")}
        if not frozen <= self._proven:
            opened = open_checkpoint(self._local, name, self._attempt)
        receipt = receipt_of(name, opened.ranks[self._rank], opened.manifest.rank_files[self._rank])
        self.size_bytes, self.done_bytes = receipt.all_bytes, 0
        transfer = Transfer(self._local, self._mirror, opened, self._proven, rank=self._rank)
        try:
            # First: rank 0 gives up where it finds one, also of an earlier try.
            self._mirror.delete([failure_key(name, self._rank, receipt.save_number)])
            transfer.compare(self._count)
            transfer.copy(self._count)
            post(self._mirror, name, receipt)
        except CkptKitError:
            with contextlib.suppress(StorageError):  # rank 0 would wait for this part
                post_failure(self._mirror, name, self._rank, receipt.save_number)
            raise
