"""The saves of a rank above 0: its part of each checkpoint, which rank 0 commits or not.

Guarantees: when a save returns, the part and the receipt for it are durable; whether all parts were committed is rank
0's to know, and to tell. This rank deletes nothing and creates no COMMIT, so that nothing it does, however late, can
make a checkpoint or unmake one. One save at a time, on the writer thread; `PartSaver.committed_at` may be asked by any
thread, `PartSaver.learn` is the training thread's.
"""

from __future__ import annotations

import logging

from ckptkit.checkpoint.frozen import FrozenShards
from ckptkit.checkpoint.receipts import post, post_failure
from ckptkit.checkpoint.write import SaveRequest, write_part
from ckptkit.core.progress import Progress
from ckptkit.errors import StaleAttemptError, StorageError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.layout import CheckpointName
from ckptkit.run.fence import check_fence
from ckptkit.run.saver import Saved, forget_before
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")


class PartSaver:
    """Saves of one rank of one attempt; what `ckptkit.run.saver.Saver` is for rank 0.

    Args:
        storage: The run root.
        attempt: The attempt that owns the run, as rank 0 told it.
        rank: Which.

    Attributes:
        frozen: The shards that this rank's parts share.
        newest: The last commit that rank 0 told of; any thread may look.
    """

    def __init__(self, storage: Storage, attempt: AttemptDocument, rank: int) -> None:
        self._storage = storage
        self._attempt = attempt
        self._rank = rank
        self._committed: dict[tuple[int, int], CheckpointName] = {}
        self.frozen = FrozenShards(storage, attempt, self._check_fence)
        self.newest: CheckpointName | None = None

    def committed_at(self, progress: Progress) -> CheckpointName | None:
        """As `Saver.committed_at`, if rank 0 told of one."""
        return self._committed.get((progress.cycles, progress.micro_step))

    def next_name(self, progress: Progress) -> CheckpointName:
        """A name that rank 0's word replaces."""
        return CheckpointName(self._attempt.attempt, progress.cycles, progress.micro_step)

    def give_up(self, number: int, why: str) -> None:
        """Nothing: this rank waits for nobody."""

    def hurry(self) -> None:
        """Nothing, for the same reason."""

    def learn(self, name: CheckpointName) -> None:
        """Take notice of a commit."""
        self._committed[(name.cycles, name.micro_step)] = name
        self.newest = name
        forget_before(name.cycles, self._committed)

    def save(self, request: SaveRequest) -> Saved:
        """Write this rank's part.

        Raises:
            StaleAttemptError: If a later attempt exists.
            StorageError: If the storage failed.
            ValueError: If the state cannot be stored.
        """
        frozen_bytes = self.frozen.written_bytes
        try:
            self._check_fence()
            receipt = write_part(self._storage, self._attempt, request, self.frozen, self._rank)
            post(self._storage, request.name, receipt)
        except StaleAttemptError:
            raise  # the folder is the later attempt's to empty, and rank 0 sees that attempt as well
        except Exception:
            self._say_that_it_failed(request)
            raise
        return Saved(request.name, receipt.own_bytes + self.frozen.written_bytes - frozen_bytes)

    def _check_fence(self) -> None:
        check_fence(self._storage, self._attempt)

    def _say_that_it_failed(self, request: SaveRequest) -> None:
        try:
            post_failure(self._storage, request.name, self._rank, request.number)
        except StorageError as error:
            # The save's own error is on its way; rank 0 learns of it at the next due save, or loses its patience.
            _log.info("rank 0 could not be told that this rank's part failed: %s", error)
