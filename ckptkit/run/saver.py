"""Runs the saves of rank 0 (`Saver`), and those of any other rank (`PartSaver`), each in a safe order.

The order: fence check, void and empty the folders of failed saves, make room, write, wait for the parts of other ranks,
manifest, fence check, COMMIT, fence check, retention. A save that returns is committed and durable, and a fence check
has passed since. The folder of one that raises is void, or the next save voids it or finds it committed. One save at a
time, on the writer thread; any thread may call `committed_at`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptkit.checkpoint.commit import keys_below, publish, read_commit, remove_data, void
from ckptkit.checkpoint.receipts import Receipts, post, post_failure
from ckptkit.checkpoint.write import FrozenShards, SaveRequest, needed_bytes, stored_metrics, write_manifest, write_part
from ckptkit.core.progress import Progress
from ckptkit.errors import (
    CorruptCheckpointError,
    SaveFailedError,
    StaleAttemptError,
    StorageError,
    UnusableCheckpointError,
)
from ckptkit.format.documents import AttemptDocument, Commit
from ckptkit.format.layout import CheckpointName
from ckptkit.run.ownership import check_fence
from ckptkit.run.retention import Retention
from ckptkit.storage import Storage
from ckptkit.storage.capacity import NO_LIMIT, Limit
from ckptkit.storage.local_files import has_no_room

_log = logging.getLogger("ckptkit")


@dataclass(frozen=True)
class SaveResult:
    checkpoint: CheckpointName
    written_bytes: int = 0
    removed: tuple[CheckpointName, ...] = ()


class _RankSaver:
    """Is the base of both savers: what only one of them does is nothing here."""

    def __init__(self, storage: Storage, attempt: AttemptDocument, room: Callable[[], Limit]) -> None:
        self._storage, self._attempt, self._room = storage, attempt, room
        self._tries: dict[tuple[int, int], int] = {}
        self.frozen = FrozenShards(storage, attempt, self._check_fence)
        self.newest: CheckpointName | None = None  # any thread may read it

    def _check_fence(self) -> None:
        check_fence(self._storage, self._attempt)

    def next_name(self, progress: Progress) -> CheckpointName:
        at = (progress.cycles, progress.micro_step)
        return CheckpointName(self._attempt.attempt, *at, self._tries.get(at, 0) + 1)

    def committed_at(self, progress: Progress, metrics: Mapping[str, float]) -> CheckpointName | None:
        return None

    def learn(self, name: CheckpointName | None) -> None: ...

    def begin(self, request: SaveRequest) -> None: ...

    def abandon(self, request: SaveRequest) -> None: ...

    def confirm(self, name: CheckpointName) -> None: ...

    def give_up(self, number: int, why: str) -> None: ...


class Saver(_RankSaver):
    def __init__(
        self,
        storage: Storage,
        attempt: AttemptDocument,
        run_id: str,
        retention: Retention,
        receipts: Receipts | None = None,
        *,
        room: Callable[[], Limit] = lambda: NO_LIMIT,
    ) -> None:
        super().__init__(storage, attempt, room)
        self._run_id, self._retention, self._receipts = run_id, retention, receipts
        self._removed: list[CheckpointName] = []  # to make room, and not reported yet
        self._committed: dict[tuple[int, int], CheckpointName] = {}
        self._undecided: dict[CheckpointName, Mapping[str, float | None]] = {}
        self._metrics: dict[tuple[int, int], Mapping[str, float | None]] = {}
        self._void: list[CheckpointName] = []
        self._offered: set[CheckpointName] = set()
        self._saving = threading.Lock()

    def committed_at(self, progress: Progress, metrics: Mapping[str, float]) -> CheckpointName | None:
        at = (progress.cycles, progress.micro_step)
        holds_all = stored_metrics(metrics).items() <= self._metrics.get(at, {}).items()
        return self._committed.get(at) if holds_all else None

    def give_up(self, number: int, why: str) -> None:
        if self._receipts is not None:
            self._receipts.give_up(number, why)

    def begin(self, request: SaveRequest) -> None:
        """Note the folder before other ranks write into it: it must be voided even if `save` never runs."""
        if self._receipts is not None:
            self._remember_try(request)

    def confirm(self, name: CheckpointName) -> None:
        """Check that this attempt still owns the run and that its commit ``name`` is there; the writer thread only."""
        check_fence(self._storage, self._attempt, put_back=self._run_id)
        try:
            there = read_commit(self._storage, name)
        except UnusableCheckpointError:
            self._forget(name)
            raise
        if not isinstance(there, Commit) or there.token != self._attempt.token:
            self._forget(name)
            raise StorageError(
                f"{name.commit_key} below {self._storage.url}, which this process made, is missing: a part of the run "
                "was deleted. The next save of this state writes it again."
            )

    def save(self, request: SaveRequest) -> SaveResult:
        """Save the contents of ``request``, unless this attempt has already committed its progress and metrics."""
        with self._alone(request):
            name = request.name
            check_fence(self._storage, self._attempt, put_back=self._run_id)
            self._void_failed_saves(besides=name)
            self._empty_void_folders()
            there = self.committed_at(request.staged.progress, request.metrics)
            if there is not None:
                return SaveResult(there)
            self._make_room(request)
            frozen_bytes = self.frozen.written_bytes
            self._remember_try(request)
            try:
                own = write_part(self._storage, self._attempt, request, self.frozen, rank=0)
                parts = (own,) if self._receipts is None else self._receipts.collect(name, own, self._check_fence)
                commit = write_manifest(self._storage, self._attempt, request, parts)
                self._check_fence()
                self._publish(name, commit)
                self._check_fence()  # a start that listed before COMMIT goes on from an earlier one: do not report this
                self._mark_committed(name)
            except StaleAttemptError:
                raise  # the later attempt voids the folder, or leaves its commit off the lineage
            except Exception:
                self._give_up()  # raises StaleAttemptError instead if a later attempt exists, which may be the reason
                if self._committed.get((name.cycles, name.micro_step)) != name:
                    raise
                # Only a reply was lost: the COMMIT was found in place.
            shards_bytes = sum(shard.size_bytes for shard in request.staged.shards if not shard.frozen)
            made_room, self._removed = self._removed, []
            return SaveResult(
                name, shards_bytes + self.frozen.written_bytes - frozen_bytes, (*made_room, *self._prune(name))
            )

    @contextlib.contextmanager
    def _alone(self, request: SaveRequest) -> Iterator[None]:
        if not self._saving.acquire(blocking=False):  # it would take that one's folder for that of a failed save
            raise SaveFailedError(f"another save of this process is still writing, so {request.name} was not begun")
        try:
            yield
        finally:
            self._saving.release()

    def _make_room(self, request: SaveRequest) -> None:
        """Remove what may go if the save does not fit, and refuse the save if it still does not."""
        needed = needed_bytes(request, self.frozen)
        if needed > self._room().free_bytes:
            self._removed += self._retention.make_room(request.name, lambda: needed - self._room().free_bytes)
        try:
            self._room().expect(needed, str(request.name))
        except StorageError:
            self._give_up()  # other ranks may have begun to write
            raise

    def _publish(self, name: CheckpointName, commit: Commit) -> None:
        self._offered.add(name)
        try:
            publish(self._storage, name, commit)
        except StorageError as error:
            # On a full disk, nothing is on its way: the folder is emptied like one whose COMMIT was never tried.
            if has_no_room(error) and not self._storage.is_remote and read_commit(self._storage, name) is None:
                self._offered.discard(name)
            raise

    def _remember_try(self, request: SaveRequest) -> None:
        name = request.name
        self._tries[(name.cycles, name.micro_step)] = name.nth_try
        self._undecided[name] = stored_metrics(request.metrics)

    def _mark_committed(self, name: CheckpointName) -> None:
        at = (name.cycles, name.micro_step)
        self._metrics[at] = self._undecided.pop(name)
        self._offered.discard(name)
        self._committed[at] = name
        self.newest = name
        known: dict[tuple[int, int], Any]
        for known in (self._committed, self._metrics, self._tries):
            # Progress goes back at most to the start of the current cycle.
            for earlier in [key for key in known if key[0] < name.cycles]:
                del known[earlier]

    def _forget(self, name: CheckpointName) -> None:
        self._committed.pop((name.cycles, name.micro_step), None)
        self.newest = max(self._committed.values(), default=None)

    def _void_failed_saves(self, *, besides: CheckpointName | None = None) -> None:
        """Void the folders of failed saves; keep a folder that turns out to be committed, after a fence check."""
        landed = []
        for name in [undecided for undecided in self._undecided if undecided != besides]:
            try:
                there = void(self._storage, name, self._attempt.token)
            except CorruptCheckpointError as error:
                _log.warning("%s; the folder stays unchanged", error)
                del self._undecided[name]
                continue
            if isinstance(there, Commit):
                landed.append(name)
            else:
                del self._undecided[name]
                self._void.append(name)
        if landed:
            self._check_fence()
        for name in landed:
            self._mark_committed(name)

    def _empty_void_folders(self) -> None:
        """Delete the data of void folders; call this only after a fence check."""
        for name in tuple(self._void):
            try:
                remove_data(self._storage, name)
            except (StorageError, CorruptCheckpointError) as error:
                # A void folder only costs space; it must not make the next save fail.
                _log.warning("a failed save's folder could not be emptied; the next start will try: %s", error)
            self._void.remove(name)

    def _give_up(self) -> None:
        try:
            # A full disk has no room for a void marker. If COMMIT was never tried, only this process could create it,
            # so the data may be deleted first. The data of any other folder stays until the folder is void.
            check_fence(self._storage, self._attempt)
            for name in self._undecided:
                if name not in self._offered:
                    self._storage.delete(keys_below(self._storage, name.folder))
            self._void_failed_saves()
        except StorageError as error:
            # The save's own error is being raised. The folder stays undecided until the next save.
            _log.warning("could not void a failed save yet; the next save will: %s", error)

    def _prune(self, committed: CheckpointName) -> tuple[CheckpointName, ...]:
        try:
            return tuple(self._retention.prune(committed))
        except Exception as error:  # noqa: BLE001 - even a keep policy may raise: the checkpoint is committed anyway
            # Old checkpoints that stay only cost space; the save itself did not fail.
            _log.warning(
                "the checkpoint is saved, but older ones could not be removed: %s",
                error,
                exc_info=None if isinstance(error, StorageError) else error,
            )
            return ()


class PartSaver(_RankSaver):
    """Writes the parts of one rank above 0; rank 0 decides whether to commit them."""

    def __init__(
        self, storage: Storage, attempt: AttemptDocument, rank: int, room: Callable[[], Limit] = lambda: NO_LIMIT
    ) -> None:
        super().__init__(storage, attempt, room)
        self._rank = rank

    def learn(self, name: CheckpointName | None) -> None:
        self.newest = name

    def save(self, request: SaveRequest) -> SaveResult:
        frozen_bytes = self.frozen.written_bytes
        try:
            self._check_fence()
            self._room().expect(needed_bytes(request, self.frozen), f"rank {self._rank} of {request.name}")
            receipt = write_part(self._storage, self._attempt, request, self.frozen, self._rank)
            post(self._storage, request.name, receipt)
        except StaleAttemptError:
            raise  # the later attempt empties the folder, and rank 0 sees that attempt too
        except Exception:
            self.abandon(request)
            with contextlib.suppress(StorageError):  # the save's own error is being raised
                self._check_fence()
            raise
        return SaveResult(request.name, receipt.own_bytes + self.frozen.written_bytes - frozen_bytes)

    def abandon(self, request: SaveRequest) -> None:
        """Tell rank 0 that this rank writes no part for ``request``."""
        try:
            post_failure(self._storage, request.name, self._rank, request.number)
        except StorageError as error:
            # The save's own error is being raised. Rank 0 learns of it at the next due save, or its wait times out.
            _log.info("could not report to rank 0 that this rank's part failed: %s", error)
