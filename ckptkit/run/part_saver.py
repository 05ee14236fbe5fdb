"""Writes the parts of one rank above 0, by `PartSaver`; rank 0 decides whether to commit them.

Guarantees: when a save returns, the part and its receipt are durable. Only rank 0 knows whether all parts were
committed, and it tells the other ranks. Ranks above 0 delete nothing and create no COMMIT, so even a late write cannot
create or destroy a checkpoint.

Threads: one save at a time, on the writer thread. Any thread may call `PartSaver.committed_at`; only the training
thread calls `PartSaver.learn`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from ckptkit.checkpoint.frozen import FrozenShards
from ckptkit.checkpoint.receipts import post, post_failure
from ckptkit.checkpoint.write import SaveRequest, needed_bytes, write_part
from ckptkit.core.progress import Progress
from ckptkit.errors import StaleAttemptError, StorageError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.layout import CheckpointName
from ckptkit.run.fence import check_fence
from ckptkit.run.saver import Saved, forget_before
from ckptkit.storage import Storage
from ckptkit.storage.capacity import UNLIMITED, Room

_log = logging.getLogger("ckptkit")


class PartSaver:
    """Writes the parts of one rank above 0; the counterpart of `ckptkit.run.saver.Saver`."""

    def __init__(self, storage: Storage, attempt: AttemptDocument, rank: int, room: Room = UNLIMITED) -> None:
        self._storage = storage
        self._attempt = attempt
        self._rank = rank
        self._room = room
        self._committed: dict[tuple[int, int], CheckpointName] = {}
        self.frozen = FrozenShards(storage, attempt, self._check_fence)
        self.newest: CheckpointName | None = None

    def committed_at(self, progress: Progress, metrics: Mapping[str, float]) -> CheckpointName | None:
        return self._committed.get((progress.cycles, progress.micro_step))

    def next_name(self, progress: Progress) -> CheckpointName:
        """Return a provisional name, which rank 0's name replaces."""
        return CheckpointName(self._attempt.attempt, progress.cycles, progress.micro_step)

    def give_up(self, number: int, why: str) -> None: ...

    def hurry(self) -> None: ...

    def learn(self, name: CheckpointName | None) -> None:
        self.newest = name
        if name is not None:
            self._committed[(name.cycles, name.micro_step)] = name
            forget_before(name.cycles, self._committed)

    def begin(self, request: SaveRequest) -> None: ...

    def abandon(self, request: SaveRequest) -> None:
        """Tell rank 0 that `save` will not run, so that it does not wait for this rank's part."""
        self._say_that_it_failed(request)

    def confirm(self, name: CheckpointName) -> None: ...

    def save(self, request: SaveRequest) -> Saved:
        """Write this rank's part."""
        frozen_bytes = self.frozen.written_bytes
        try:
            self._check_fence()
            self._room.expect(needed_bytes(request, self.frozen), f"rank {self._rank} of {request.name}")
            receipt = write_part(self._storage, self._attempt, request, self.frozen, self._rank)
            post(self._storage, request.name, receipt)
        except StaleAttemptError:
            raise  # the later attempt empties the folder, and rank 0 sees that attempt too
        except Exception:
            self._say_that_it_failed(request)
            self._refuse_if_stale()
            raise
        return Saved(request.name, receipt.own_bytes + self.frozen.written_bytes - frozen_bytes)

    def _check_fence(self) -> None:
        check_fence(self._storage, self._attempt)

    def _refuse_if_stale(self) -> None:
        with contextlib.suppress(StorageError):  # the save's own error is being raised
            self._check_fence()

    def _say_that_it_failed(self, request: SaveRequest) -> None:
        try:
            post_failure(self._storage, request.name, self._rank, request.number)
        except StorageError as error:
            # The save's own error is being raised. Rank 0 learns of it at the next due save, or its wait times out.
            _log.info("could not report to rank 0 that this rank's part failed: %s", error)
