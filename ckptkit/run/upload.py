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

from ckptkit.checkpoint.commit import (
    create_once,
    keys_below,
    list_attempts,
    make_durable,
    read_commit,
    remove_data,
    void_or_leave,
)
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
from ckptkit.format.documents import AttemptDocument, Commit, Void, encode
from ckptkit.format.layout import CHECKPOINTS, FROZEN, CheckpointName, attempt_key
from ckptkit.run.index import Documents
from ckptkit.run.keep_policy import KeepPolicy
from ckptkit.run.ownership import check_fence, read_run
from ckptkit.run.retention import Retention, remove_each, remove_frozen, sweep
from ckptkit.run.root_and_mirrors import Homes, share_documents
from ckptkit.storage import Storage
from ckptkit.storage.capacity import limit_at
from ckptkit.storage.local_files import has_no_room

UploadOutcome = Literal["copied", "present", "void", "gone"]

_TRIES = 3  # as many as an upload gets at the end of a training; below them, a bucket repeats each request
_LONGER = 3  # ranks store about as much as each other, but not every way to a mirror is equally fast
_FIRST_PAUSE = timedelta(milliseconds=50)
_LONGEST_PAUSE = timedelta(seconds=1)
_log = logging.getLogger("ckptkit")


class UploadPace:
    """Makes its caller wait until the bytes so far are within a rate; any thread may lift the bound."""

    def __init__(
        self,
        bytes_per_second: int | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self.monotonic = monotonic
        self._lifted = Latch()
        self._pause = pause
        self._free_at = monotonic()

    def spend(self, size_bytes: int) -> None:
        if self._bytes_per_second is None or self._lifted.is_open:
            return
        now = self.monotonic()
        self._free_at = max(now, self._free_at) + size_bytes / self._bytes_per_second
        (self._pause or self._lifted.wait)(self._free_at - now)

    def lift(self) -> None:
        self._lifted.open()

    def restore(self) -> None:
        self._lifted = Latch()


class _RankUploader:
    """Counts the bytes of the current upload, else of the last one, and remembers the files that are proven there."""

    def __init__(
        self, local: Storage, mirror: Storage, attempt: AttemptDocument, patience: Patience, pace: UploadPace
    ) -> None:
        self._local, self._mirror, self._attempt, self.patience = local, mirror, attempt, patience
        self._monotonic = pace.monotonic
        self._proven: set[str] = set()
        self.pace = pace
        self.size_bytes = self.done_bytes = 0

    def _check_fence(self) -> None:
        check_fence(self._mirror, self._attempt)

    def _count(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes
        self.pace.spend(size_bytes)

    def _forget_unshared(self) -> None:
        self._proven = {key for key in self._proven if key.startswith(f"{FROZEN}/")}


class Uploader(_RankUploader):
    def __init__(
        self,
        homes: Sequence[Storage],
        mirror: Storage,
        attempt: AttemptDocument,
        run_id: str,
        policy: KeepPolicy,
        *,
        brings_home: bool = False,
        ranks: int = 1,
        patience: Patience | None = None,
        pace: UploadPace | None = None,
    ) -> None:
        super().__init__(homes[0], mirror, attempt, patience or Patience(timedelta(0)), pace or UploadPace(None))
        self._homes, self._brings_home, self._ranks, self._run_id = homes, brings_home, ranks, run_id
        self._receipts = Receipts(mirror, ranks, self.patience, monotonic=self._monotonic)
        self._retention = Retention(mirror, attempt, policy)
        self._begun: set[CheckpointName] = set()
        self._shared: frozenset[int] = frozenset()  # numbers of the local documents when both had the same
        self._tried: set[CheckpointName] = set()  # whose other parts were waited for
        self._has_run = False  # whether the local root had run.json then, too

    def upload(self, name: CheckpointName) -> UploadOutcome:
        """Commit ``name`` at the mirror too, then apply retention there."""
        is_damaged = check_fence(self._mirror, self._attempt, put_back=self._run_id)  # somebody removed a document
        there_are = list_attempts(self._local)  # before both: another uploader may bring documents meanwhile
        if is_damaged or there_are != self._shared or not self._has_run:
            self._has_run = read_run(self._local) is not None
            share_documents(self._local, self._mirror, self._attempt)
            self._shared = there_are
        there = read_commit(self._mirror, name)
        if there is not None:
            make_durable(self._mirror, name.commit_key, encode(there))
            if isinstance(there, Commit) and self._brings_home:
                self._bring_home(name)
            return "void" if isinstance(there, Void) else "present"
        document = self._document(name)
        if name.attempt not in self._shared:  # it was read at a third home, whose documents come later
            create_once(self._mirror, attempt_key(name.attempt), encode(document))
        try:
            self._copy_from_any(name, document)
        except CkptKitError as error:
            # A later attempt may have swept the uploaded files; then StaleAttemptError is the error to raise.
            with contextlib.suppress(StorageError):
                self._check_fence()
                if isinstance(error, StorageError) and has_no_room(error):
                    self._remove_given_up(besides=name)  # what an earlier upload has left may be what fills it
            raise
        self._check_fence()  # a start that looked there before COMMIT does not know of it
        self._tidy(name)
        return "copied"

    def sweep(self) -> None:
        """Remove what earlier attempts left at the mirror."""
        sweep(self._mirror, self._attempt, has_mirror=True)

    def _document(self, name: CheckpointName) -> AttemptDocument:
        own = name.attempt == self._attempt.attempt
        return self._attempt if own else Documents(Homes(self._homes)).document(name.attempt)

    def _copy_from_any(self, name: CheckpointName, document: AttemptDocument) -> None:
        """Copy ``name`` from the nearest home that has it whole; raise the local root's error if none has."""
        failed: CkptKitError | None = None
        for home in self._homes:
            try:
                if home is not self._mirror:
                    return self._copy(home, open_checkpoint(home, name, document))
            except (CheckpointNotFoundError, CorruptCheckpointError) as error:
                failed = failed or error
        assert failed is not None  # noqa: S101 - the local root is no mirror
        raise failed

    def _bring_home(self, name: CheckpointName) -> None:
        """Copy ``name`` from the mirror to the local root, so that the next start reads it there."""
        self._brings_home = False
        try:
            if read_commit(self._local, name) is not None:  # or void: a start found the remains of such a copy
                return
            opened = open_checkpoint(self._mirror, name, self._document(name))
            # In memory, with room for the next save beside it: that one matters more.
            limit_at(self._local, CHECKPOINTS).expect(2 * opened.size_bytes, f"{name} and the next save")
            self.size_bytes, self.done_bytes = opened.size_bytes, 0
            self._copy_home(Transfer(self._mirror, self._local, opened))
        except CkptKitError as error:
            self._check_fence()  # a later attempt may have swept what was copied
            _log.warning(
                "could not copy %s back to %s: %s. It stays at %s, where the next start reads it",
                *(name, self._local.url, str(error).rstrip("."), self._mirror.url),
            )
            self._remove_remains(name)
        else:
            _log.info("%s is back at %s, copied from %s", name, self._local.url, self._mirror.url)

    def _copy_home(self, transfer: Transfer) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                transfer.compare()
                transfer.finish(self._count, before_commit=lambda: check_fence(self._local, self._attempt))
                return
            except StorageError as error:
                if not tries_left:
                    raise
                _log.info("copying back to %s failed and is tried again: %s", self._local.url, error)

    def _remove_remains(self, name: CheckpointName) -> None:
        """Remove what an unfinished copy of ``name`` has left at the local root, which may be short of room."""
        with contextlib.suppress(StorageError, CorruptCheckpointError):  # else the sweep of the next start does
            check_fence(self._local, self._attempt)
            if void_or_leave(self._local, name, self._attempt.token):
                remove_data(self._local, name)
            remove_frozen(self._local, name.attempt, self._attempt.token)

    def _copy(self, source: Storage, opened: OpenedCheckpoint) -> None:
        self._begun.add(opened.name)
        self.size_bytes, self.done_bytes = opened.size_bytes, 0
        has_help = self._ranks > 1 and opened.name.attempt == self._attempt.attempt
        begun = self._monotonic()
        transfer = Transfer(source, self._mirror, opened, self._proven, rank=0 if has_help else None)
        transfer.compare(self._count)
        transfer.finish(
            self._count,
            before_commit=self._check_fence,
            others=(lambda: self._await_parts(opened, self._monotonic() - begun)) if has_help else None,
        )
        self._forget_unshared()

    def _await_parts(self, opened: OpenedCheckpoint, own_seconds: float) -> None:
        if opened.name in self._tried:  # what a part's first try has left is not the outcome of the next one
            number = opened.ranks[0].save_number
            self._mirror.delete([failure_key(opened.name, rank, number) for rank in range(1, self._ranks)])
        self._tried = {opened.name}
        own = receipt_of(opened.name, opened.ranks[0], opened.manifest.rank_files[0])
        least_seconds = _LONGER * own_seconds
        receipts = self._receipts.collect(opened.name, own, self._check_fence, least_seconds=least_seconds)
        for receipt, file in zip(receipts, opened.manifest.rank_files, strict=True):
            if receipt.file != file:
                raise SaveFailedError(
                    f"rank {receipt.rank} uploaded another part of {opened.name} to {self._mirror.url} than is "
                    f"committed at {self._local.url}. Give all ranks the same root and mirrors"
                )

    def _tidy(self, name: CheckpointName) -> None:
        self._begun.discard(name)
        try:
            self._retention.prune(name)
            self._remove_given_up(besides=name)
        except StaleAttemptError:
            raise
        except Exception as error:  # noqa: BLE001 - even a keep policy may raise: the upload itself is done
            _log.warning(
                "the upload is done, but older files at %s could not be removed: %s",
                *(self._mirror.url, error),
                exc_info=None if isinstance(error, StorageError) else error,
            )

    def _remove_given_up(self, besides: CheckpointName) -> None:
        given_up = sorted(self._begun - {besides})
        if given_up:
            self._check_fence()

        def empty(name: CheckpointName) -> None:
            if keys_below(self._mirror, name.folder) and void_or_leave(self._mirror, name, self._attempt.token):
                remove_data(self._mirror, name)

        remove_each(self._mirror, given_up, empty, self._check_fence)
        self._begun.difference_update(given_up)  # what is stuck is left to the sweep of the next start


class PartUploader(_RankUploader):
    """Uploads the parts of one rank above 0; commits and removes nothing."""

    def __init__(
        self,
        local: Storage,
        mirror: Storage,
        attempt: AttemptDocument,
        rank: int,
        patience: Patience,
        *,
        pace: UploadPace,
    ) -> None:
        super().__init__(local, mirror, attempt, patience, pace)
        self._rank = rank

    def upload(self, name: CheckpointName) -> UploadOutcome:
        self._check_fence()
        if not self._is_committed(name):
            return "gone"
        there = read_commit(self._mirror, name)
        if there is not None:
            return "void" if isinstance(there, Void) else "present"
        try:
            self._copy(name)
        except StaleAttemptError:
            raise
        except CkptKitError:
            with contextlib.suppress(StorageError):  # the upload's own error is being raised
                self._check_fence()
            raise
        return "copied"

    def sweep(self) -> None: ...

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

    def _open(self, name: CheckpointName) -> OpenedCheckpoint:
        """Open ``name`` for this rank's part, without a request for each rank of the job.

        A frozen shard that two ranks share is uploaded by the lower one, so the others' documents are read once for it.
        """
        opened = open_part(self._local, name, self._attempt, self._rank)
        frozen = {shard.key for shard in opened.ranks[self._rank].shards if shard.key.startswith(f"{FROZEN}/")}
        return opened if frozen <= self._proven else open_checkpoint(self._local, name, self._attempt)

    def _copy(self, name: CheckpointName) -> None:
        opened = self._open(name)
        receipt = receipt_of(name, opened.ranks[self._rank], opened.manifest.rank_files[self._rank])
        number = receipt.save_number
        self.size_bytes, self.done_bytes = receipt.all_bytes, 0
        transfer = Transfer(self._local, self._mirror, opened, self._proven, rank=self._rank)
        try:
            # First: rank 0 gives up where it finds one, also of an earlier try.
            self._mirror.delete([failure_key(name, self._rank, number)])
            transfer.compare(self._count)
            transfer.copy(self._count)
            post(self._mirror, name, receipt)
        except CkptKitError:
            with contextlib.suppress(StorageError):  # rank 0 would wait for this part
                post_failure(self._mirror, name, self._rank, number)
            raise
        self._forget_unshared()
