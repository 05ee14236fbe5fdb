"""One save from the first byte to retention, in the order that makes it safe.

Fence check, write, wait for the parts of other ranks, fence check, COMMIT, retention. Guarantees: a save that returns
a name is committed and durable; one that raises left no checkpoint, and its folder is void or will be before this
attempt's next save (after StaleAttemptError it is the later attempt's to decide); what was committed before is
untouched either way. One save at a time, on the writer thread; `Saver.committed_at` may be asked by any thread.

The saves of a rank above 0: its part of each checkpoint, which rank 0 commits or not. Guarantees: when a save returns,
the part and the receipt for it are durable; whether all parts were committed is rank 0's to know, and to tell. This
rank deletes nothing and creates no COMMIT, so that nothing it does, however late, can make a checkpoint or unmake one.
One save at a time, on the writer thread; `PartSaver.committed_at` may be asked by any thread, `PartSaver.learn` is the
training thread's.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from ckptkit.checkpoint.commit import keys_below, publish, remove_data, void
from ckptkit.checkpoint.frozen import FrozenShards
from ckptkit.checkpoint.receipts import Receipts, post, post_failure
from ckptkit.checkpoint.write import SaveRequest, write_manifest, write_part
from ckptkit.core.progress import Progress
from ckptkit.errors import CorruptCheckpointError, StaleAttemptError, StorageError
from ckptkit.format.documents import AttemptDocument, Commit
from ckptkit.format.layout import CheckpointName
from ckptkit.run.fence import check_fence
from ckptkit.run.retention import Retention
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")


@dataclass(frozen=True)
class Saved:
    """What a save left behind.

    Attributes:
        checkpoint: The committed checkpoint.
        written_bytes: Of this rank's shards; none if the progress was committed already.
        removed: What retention removed after it.
    """

    checkpoint: CheckpointName
    written_bytes: int = 0
    removed: tuple[CheckpointName, ...] = ()


def forget_before(cycles: int, known: dict[tuple[int, int], Any]) -> None:
    """Forget what is ``known`` of earlier cycles: progress goes back to the start of the running one at most."""
    for at in [at for at in known if at[0] < cycles]:
        del known[at]


class Saver:
    """Saves of one attempt.

    Args:
        storage: The run root.
        attempt: The attempt that owns the run.
        run_id: Of the run that it was opened on.
        retention: What to remove after a commit.
        receipts: Waits for the parts of the other ranks, where there are any.

    Attributes:
        frozen: The shards that its checkpoints share.
        newest: Its last commit; any thread may look.
    """

    def __init__(
        self,
        storage: Storage,
        attempt: AttemptDocument,
        run_id: str,
        retention: Retention,
        receipts: Receipts | None = None,
    ) -> None:
        self._storage = storage
        self._attempt = attempt
        self._run_id = run_id
        self._retention = retention
        self._receipts = receipts
        self._committed: dict[tuple[int, int], CheckpointName] = {}
        self._tries: dict[tuple[int, int], int] = {}
        self._undecided: list[CheckpointName] = []
        self._void: list[CheckpointName] = []
        self._offered: set[CheckpointName] = set()
        self.frozen = FrozenShards(storage, attempt, self._check_fence)
        self.newest: CheckpointName | None = None

    def committed_at(self, progress: Progress) -> CheckpointName | None:
        """This attempt's commit at ``progress``, which is not before the cycle of its newest one, if there is one."""
        return self._committed.get((progress.cycles, progress.micro_step))

    def next_name(self, progress: Progress) -> CheckpointName:
        """What a save at ``progress`` is to be called, while none is under way."""
        at = (progress.cycles, progress.micro_step)
        return CheckpointName(self._attempt.attempt, *at, self._tries.get(at, 0) + 1)

    def give_up(self, number: int, why: str) -> None:
        """Let the save ``number`` fail, because another rank's part of it will not come; any thread."""
        if self._receipts is not None:
            self._receipts.give_up(number, why)

    def hurry(self) -> None:
        """Wait for other ranks no longer than some seconds more; any thread."""
        if self._receipts is not None:
            self._receipts.hurry()

    def learn(self, name: CheckpointName) -> None:
        """Nothing: this rank commits."""

    def save(self, request: SaveRequest) -> Saved:
        """Save what ``request`` holds; a progress that this attempt has committed is not saved again.

        Raises:
            StaleAttemptError: If a later attempt exists.
            SaveFailedError: If the part of another rank did not come.
            StorageError: If the storage failed.
            ValueError: If the state cannot be stored.
        """
        name = request.name
        try:
            check_fence(self._storage, self._attempt, put_back=self._run_id)
            self._decide()
        except StorageError:
            self._note_others(name)
            raise
        self._empty()
        there = self.committed_at(request.staged.progress)
        if there is not None:
            self._note_others(name)
            return Saved(there)
        frozen_bytes = self.frozen.written_bytes
        self._begin(name)
        try:
            own = write_part(self._storage, self._attempt, request, self.frozen, rank=0)
            parts = (own,) if self._receipts is None else self._receipts.collect(name, own, self._check_fence)
            commit = write_manifest(self._storage, self._attempt, request, parts)
            self._check_fence()
            self._offered.add(name)
            publish(self._storage, name, commit)
        except StaleAttemptError:
            raise  # whatever lies there is the later attempt's to void
        except Exception:
            self._give_up()
            if self.committed_at(request.staged.progress) is None:
                raise
            # Only the reply was lost: settling found the COMMIT in place.
        else:
            self._settle(name)
        shards_bytes = sum(shard.size_bytes for shard in request.staged.shards if not shard.frozen)
        return Saved(name, shards_bytes + self.frozen.written_bytes - frozen_bytes, self._prune())

    def _note_others(self, name: CheckpointName) -> None:
        """This rank writes nothing into the folder; where there are others, they do, and it has to be voided."""
        if self._receipts is not None:
            self._begin(name)

    def _begin(self, name: CheckpointName) -> None:
        self._tries[(name.cycles, name.micro_step)] = name.nth_try
        self._undecided.append(name)

    def _check_fence(self) -> None:
        check_fence(self._storage, self._attempt)

    def _settle(self, name: CheckpointName) -> None:
        self._undecided.remove(name)
        self._offered.discard(name)
        self._committed[(name.cycles, name.micro_step)] = name
        self.newest = name
        for known in (self._committed, self._tries):
            forget_before(name.cycles, known)

    def _decide(self) -> None:
        """Void the folders of failed saves; one that turns out to be committed stays."""
        for name in tuple(self._undecided):
            try:
                there = void(self._storage, name, self._attempt.token)
            except CorruptCheckpointError as error:
                _log.warning("%s; the folder is left as it is", error)
                self._undecided.remove(name)
                continue
            if isinstance(there, Commit):
                self._settle(name)
            else:
                self._undecided.remove(name)
                self._void.append(name)

    def _empty(self) -> None:
        """Delete the data of void folders; only ever right after a fence check."""
        for name in tuple(self._void):
            try:
                remove_data(self._storage, name)
            except (StorageError, CorruptCheckpointError) as error:
                # A void folder costs space and nothing else; it must not make the next save fail.
                _log.warning("a failed save's folder could not be emptied yet: %s", error)
            else:
                self._void.remove(name)

    def _give_up(self) -> None:
        try:
            # A full disk has no room for a void marker. Of a folder whose COMMIT was never tried, this process is the
            # only one that could create it, so data may go first; of any other, not before it is void.
            check_fence(self._storage, self._attempt)
            for name in self._undecided:
                if name not in self._offered:
                    self._storage.delete(keys_below(self._storage, name.folder))
            self._decide()
        except (StorageError, StaleAttemptError) as error:
            # The save's own error is on its way; the folder stays undecided and the next save decides it.
            _log.warning("could not void a failed save yet, the next one will: %s", error)

    def _prune(self) -> tuple[CheckpointName, ...]:
        try:
            return tuple(self._retention.prune())
        except StaleAttemptError:
            raise
        except Exception as error:  # noqa: BLE001 - also a keep policy's own: the checkpoint is committed either way
            # Old ones that stay cost space and nothing else; reporting the save as failed would be untrue.
            _log.warning("the checkpoint is saved, but older ones could not be removed", exc_info=error)
            return ()


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
