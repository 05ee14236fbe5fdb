"""Uploads the parts of one rank above 0 to a mirror; the counterpart of `ckptkit.run.homes.upload.Uploader`.

A part is uploaded once rank 0 has committed its checkpoint at the run root, which all ranks see; then an empty file at
the mirror, the receipt, tells rank 0 that the part is durable there. Guarantees: nothing is committed or removed at the
mirror, and no file of another rank is touched. Threads: any, one at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import timedelta

from ckptkit.checkpoint.commit import read_commit
from ckptkit.checkpoint.open import OpenedCheckpoint, open_checkpoint, open_part
from ckptkit.checkpoint.receipts import FAREWELL, failure_key, post, post_failure, receipt_of
from ckptkit.checkpoint.transfer import Transfer
from ckptkit.core.worker import Latch
from ckptkit.errors import CkptKitError, SaveFailedError, StaleAttemptError, StorageError
from ckptkit.format.documents import AttemptDocument, Commit, Void
from ckptkit.format.layout import FROZEN, CheckpointName
from ckptkit.run.fence import check_fence
from ckptkit.run.homes.pace import Pace
from ckptkit.run.homes.upload import UploadOutcome
from ckptkit.storage import Storage

_FIRST_PAUSE = timedelta(milliseconds=50)
_LONGEST_PAUSE = timedelta(seconds=1)


class PartUploader:
    def __init__(
        self,
        local: Storage,
        mirror: Storage,
        attempt: AttemptDocument,
        rank: int,
        patience: timedelta,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
    ) -> None:
        self._local = local
        self._mirror = mirror
        self._attempt = attempt
        self._rank = rank
        self._patience = patience
        self._monotonic = monotonic
        self.pace = pace or Pace(None)
        self._proven: set[str] = set()
        self._hurried = Latch()
        self.size_bytes = 0
        self.done_bytes = 0

    def upload(self, name: CheckpointName) -> UploadOutcome:
        check_fence(self._mirror, self._attempt)
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
                check_fence(self._mirror, self._attempt)
            raise
        return "copied"

    def hurry(self) -> None:
        self._patience = min(self._patience, FAREWELL)
        self._hurried.open()

    def sweep(self) -> bool:
        return False

    def _is_committed(self, name: CheckpointName) -> bool:
        """Wait until rank 0 has committed ``name`` at the run root, or given it up."""
        begun, pause = self._monotonic(), _FIRST_PAUSE
        while True:
            there = read_commit(self._local, name)
            if there is not None:
                return isinstance(there, Commit)
            if self._monotonic() - begun >= self._patience.total_seconds():
                raise SaveFailedError(f"rank 0 has not committed {name} at {self._local.url}, so no part was uploaded")
            self._hurried = Latch()  # another one for each wait: an open one would let this loop spin
            self._hurried.wait(pause.total_seconds())
            pause = min(_LONGEST_PAUSE, pause * 1.5)

    def _open(self, name: CheckpointName) -> OpenedCheckpoint:
        """Open ``name`` for this rank's part, without a request for each rank of the job.

        A frozen shard that two ranks share is uploaded by the lower one, so the others' documents are read once for it.
        """
        opened = open_part(self._local, name, self._attempt, self._rank)
        frozen = {one.key for one in opened.ranks[self._rank].shards if one.key.startswith(f"{FROZEN}/")}
        return opened if frozen <= self._proven else open_checkpoint(self._local, name, self._attempt)

    def _copy(self, name: CheckpointName) -> None:
        opened = self._open(name)
        number = opened.ranks[self._rank].save_number
        failure = failure_key(name, self._rank, number)
        receipt = receipt_of(opened, self._rank)
        self.size_bytes, self.done_bytes = receipt.all_bytes, 0
        transfer = Transfer(self._local, self._mirror, opened, self._proven, rank=self._rank)
        try:
            self._mirror.delete([failure])  # first: rank 0 gives up where it finds one, also of an earlier try
            transfer.compare(self._count)
            transfer.copy(self._count)
            post(self._mirror, name, receipt)
        except CkptKitError:
            with contextlib.suppress(StorageError):  # rank 0 would wait for this part
                post_failure(self._mirror, name, self._rank, number)
            raise
        self._proven.intersection_update({key for key in self._proven if key.startswith(f"{FROZEN}/")})

    def _count(self, size_bytes: int) -> None:
        self.done_bytes += size_bytes
        self.pace.spend(size_bytes)
