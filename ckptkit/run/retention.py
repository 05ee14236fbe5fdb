"""Removes the checkpoints that the keep policy no longer wants.

Whatever the policy says, the two newest commits of the lineage stay, the parent until this attempt has two commits of
its own, everything off the lineage, and all that cannot be parsed; where a save would not fit into memory, what is
committed elsewhere too may go, down to the newest. The caller has checked the fence; COMMIT is removed first. Before a
deletion, folders are listed again, and the two newest commits and their attempts' documents are read again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress

from ckptkit.checkpoint.commit import read_commit, remove_checkpoint
from ckptkit.checkpoint.open import check_token, read_metrics
from ckptkit.checkpoint.receipts import is_certified
from ckptkit.core.worker import each_of
from ckptkit.errors import (
    CheckpointNotFoundError,
    CorruptCheckpointError,
    StaleAttemptError,
    StorageError,
    UnusableCheckpointError,
)
from ckptkit.format.documents import AttemptDocument, Commit, Void
from ckptkit.format.layout import CHECKPOINTS, CheckpointName, frozen_folder
from ckptkit.run.fence import check_fence
from ckptkit.run.index import Documents, Lineage
from ckptkit.run.keep_policy import Keepable, KeepPolicy
from ckptkit.run.sweep import remove_each, remove_frozen
from ckptkit.storage import Storage
from ckptkit.storage.capacity import in_pages

_log = logging.getLogger("ckptkit")


@dataclass(eq=False, slots=True)
class _Folder:
    """Holds what is known of a folder on the lineage; while ``commit`` is None, COMMIT has to be read."""

    name: CheckpointName
    keepable: Keepable
    commit: Commit | Void | UnusableCheckpointError | None = None
    has_metrics: bool = False


class Retention:
    def __init__(
        self,
        storage: Storage,
        attempt: AttemptDocument,
        policy: KeepPolicy,
        is_elsewhere: Callable[[CheckpointName], bool] = lambda name: False,
    ) -> None:
        self._storage = storage
        self._attempt = attempt
        self._policy = policy
        self._is_elsewhere = is_elsewhere
        self._documents = Documents(storage)
        self._lineage = Lineage(self._documents, attempt.attempt)
        self._check_fence = partial(check_fence, storage, attempt)
        self._listed: set[str] = set()  # all that lies in checkpoints/, with what was added or removed here since
        self._folders: dict[CheckpointName, _Folder] = {}  # oldest first
        self._stuck: set[CheckpointName] = set()  # could not be removed

    def prune(self, committed: CheckpointName | None = None) -> list[CheckpointName]:
        """Remove the checkpoints of this attempt's lineage that need not be kept; return those that are removed."""
        if self._add(committed) and not self._may_remove():
            return []
        self._list()
        self._learn_certified()
        if not self._may_remove():
            return []
        newest_first = self._committed()
        doomed = self._unwanted(newest_first)
        return self._remove(doomed) if doomed and self._can_be_read(newest_first[:2]) else []

    def _add(self, name: CheckpointName | None) -> bool:
        """Add an own commit; return whether all folders are known then."""
        newest = next(reversed(self._folders), None)
        if name is None or newest is None or name.attempt != self._attempt.attempt or name <= newest:
            return False
        self._folders[name] = _new_folder(name)
        self._listed.add(str(name))
        return True

    def _may_remove(self) -> bool:
        # Counting unread folders as commits can only add some to remove, never hide one.
        return self._policy.needs_metrics or bool(self._unwanted(self._possible()))

    def make_room(self, incoming: CheckpointName, lacking_bytes: Callable[[], int]) -> list[CheckpointName]:
        """Remove checkpoints one at a time until a save fits; return them. If all would not be enough, remove none."""
        removed: list[CheckpointName] = []
        stuck: set[CheckpointName] = set()
        try:
            self._list()
            while lacking_bytes() and (chosen := self._expendable(lacking_bytes(), stuck)):
                self._check_fence()
                removed += self._remove(chosen[:1])
                stuck.update(folder.name for folder in chosen[:1] if folder.name in self._stuck)
        except StaleAttemptError:
            raise
        except Exception as error:  # noqa: BLE001 - even a keep policy may raise
            _log.warning("could not make room for %s at %s", incoming, self._storage.url, exc_info=error)
        for name in removed:
            _log.info("removed %s, because the save of %s would not have fitted into memory", name, incoming)
        return removed

    def _remove(self, doomed: Sequence[_Folder]) -> list[CheckpointName]:
        def remove(name: CheckpointName) -> None:
            self._folders[name].commit = None  # first, so that after a partial removal COMMIT is read again
            remove_checkpoint(self._storage, name)
            del self._folders[name]
            self._listed.discard(str(name))

        names = [folder.name for folder in doomed if folder.name not in self._stuck]
        names += [folder.name for folder in doomed if folder.name in self._stuck][:1]  # many would delay each save
        stuck = remove_each(self._storage, names, remove, self._check_fence, warned=self._stuck)
        removed = [name for name in names if name not in stuck]
        self._stuck = (self._stuck | stuck) - set(removed)
        ended = {frozen_folder(name.attempt): name.attempt for name in removed if name.attempt < self._attempt.attempt}
        for folder in self._folders.values() if ended else ():
            if isinstance(folder.commit, Commit):
                ended.pop(frozen_folder(folder.name.attempt), None)
        token = self._attempt.token
        remove_each(
            self._storage, ended, lambda key: remove_frozen(self._storage, ended[key], token), self._check_fence
        )
        return removed

    def _expendable(self, lacking_bytes: int, stuck: Collection[CheckpointName]) -> list[_Folder]:
        """Return what may go to make room, in this order, without ``stuck``; nothing if it would not be enough."""
        self._learn_certified()
        newest_first = self._committed()
        chosen = [folder for folder in self._unwanted(newest_first) if folder.name not in stuck]
        for folder in newest_first[:0:-1]:  # without the newest, oldest first
            if self._freed_bytes(chosen, newest_first) >= lacking_bytes:
                break
            if folder not in chosen and folder.name not in stuck and self._is_elsewhere(folder.name):
                chosen.append(folder)
        is_enough = chosen and self._freed_bytes(chosen, newest_first) >= lacking_bytes
        return chosen if is_enough and self._can_be_read(newest_first[:2]) else []

    def _freed_bytes(self, chosen: Sequence[_Folder], committed: Sequence[_Folder]) -> int:
        """Return what the removal of ``chosen`` frees, with the frozen shards of attempts that then end."""
        left = {folder.name.attempt for folder in committed if folder not in chosen}
        ended = {folder.name.attempt for folder in chosen} - left
        folders = [folder.name.folder for folder in chosen]
        folders += [frozen_folder(number) for number in ended if number < self._attempt.attempt]
        return sum(in_pages(size) for folder in folders for size in self._storage.walk(f"{folder}/").values())

    def _list(self) -> None:
        """List the folders on the lineage, committed or not; what is known of those that stayed is kept."""
        listing = self._storage.list(CHECKPOINTS)
        there = {*listing.folders, *listing.files}
        if self._lineage.broken is not None:  # the document may have been restored
            self._lineage = Lineage(self._documents, self._attempt.attempt)
        elif there == self._listed:
            return
        names = sorted(name for name in map(CheckpointName.parse, there) if name is not None)
        # Follow the lineage only as far back as there are folders: a run may have been started a thousand times.
        oldest = min((name.attempt for name in names), default=self._attempt.attempt)
        segments = {segment.attempt: segment for segment in self._lineage.down_to(oldest)}
        # A COMMIT never changes, but a folder that disappeared may come back with another one.
        self._folders = {
            name: self._folders.get(name) or _new_folder(name)
            for name in names
            if name in segments.get(name.attempt, ())
        }
        self._listed = there

    def _possible(self) -> list[_Folder]:
        """Return, newest first, what is committed as far as it was read."""
        return [folder for folder in reversed(self._folders.values()) if isinstance(folder.commit, Commit | None)]

    def _learn_certified(self) -> None:
        if self._policy.needs_certificates:
            # A checkpoint may have got its certificate since the last time.
            others = [folder for folder in self._folders.values() if not folder.keepable.is_certified]
            certified = each_of(others, lambda folder: is_certified(self._storage, folder.name))
            for folder in compress(others, certified):
                folder.keepable = replace(folder.keepable, is_certified=True)

    def _unwanted(self, newest_first: Sequence[_Folder]) -> list[_Folder]:
        """Return what the policy does not keep, oldest first; it judges nothing without the metrics that it needs."""
        # The parent is one of these until this attempt has two commits.
        spared = newest_first[:2]
        judged = [folder for folder in reversed(newest_first) if folder.has_metrics or not self._policy.needs_metrics]
        kept = self._policy.keeps([folder.keepable for folder in judged])
        return [folder for folder in judged if folder.keepable.name not in kept and folder not in spared]

    def _committed(self) -> list[_Folder]:
        """Return what is committed, newest first; the COMMITs of the two newest are read, not taken from the cache.

        If the policy needs metrics, all of these have them then, unless they could not be read.
        """
        possible = self._possible()
        unread = [folder for folder in possible if folder.commit is None]
        each_of(unread, self._read_commit)
        committed: list[_Folder] = []
        for folder in possible:
            if len(committed) < 2 and folder not in unread:
                self._read_commit(folder)
            if isinstance(folder.commit, Commit):
                committed.append(folder)
        if self._policy.needs_metrics:
            each_of([folder for folder in committed if not folder.has_metrics], self._learn_metrics)
        return committed

    def _read_commit(self, folder: _Folder) -> None:
        """Read COMMIT again; it may still be created where there is none."""
        try:
            folder.commit = read_commit(self._storage, folder.name)
            if isinstance(folder.commit, Commit):  # a foreign commit raises: it does not count, and stays
                own = folder.name.attempt == self._attempt.attempt
                document = self._attempt if own else self._documents.document(folder.name.attempt)
                check_token(folder.name, folder.commit, document)
        except UnusableCheckpointError as error:
            folder.commit = error
        except StorageError as error:
            self._check_fence()  # raises if nothing can be read at all
            _log.warning("%s is kept, because it cannot be read: %s", folder.name, error)
            folder.commit = CorruptCheckpointError(str(error))

    def _can_be_read(self, newest: Sequence[_Folder]) -> bool:
        """Whether the attempt documents of ``newest`` are still intact; without them no commit can be used."""
        documents = Documents(self._storage)
        try:
            documents.document(self._attempt.attempt)
            for folder in newest:
                assert isinstance(folder.commit, Commit)  # noqa: S101 - it was read just before
                check_token(folder.name, folder.commit, documents.document(folder.name.attempt))
        except UnusableCheckpointError as error:
            _log.warning("no checkpoint is removed this time: %s", error)
            self._documents, self._folders, self._listed = Documents(self._storage), {}, set()
            self._lineage = Lineage(self._documents, self._attempt.attempt)
            return False
        return True

    def _learn_metrics(self, folder: _Folder) -> None:
        assert isinstance(folder.commit, Commit)  # noqa: S101 - called for commits only
        try:
            metrics = read_metrics(self._storage, folder.name, folder.commit)
        except (UnusableCheckpointError, CheckpointNotFoundError) as error:
            _log.warning("%s is kept, because its metrics cannot be read: %s", folder.name, error)
        else:
            folder.keepable, folder.has_metrics = replace(folder.keepable, metrics=metrics), True


def _new_folder(name: CheckpointName) -> _Folder:
    return _Folder(name, Keepable(str(name), name.cycles, name.micro_step))
