"""Removes what a run no longer needs: checkpoints that the keep policy does not want, and what dead attempts left.

Whatever the policy says, the two newest commits of the lineage stay, the parent until this attempt has two commits of
its own, everything off the lineage, and all that cannot be parsed; where a save would not fit into memory, what is
committed elsewhere too may go, down to the newest. The caller has checked the fence; COMMIT is removed first. Before a
deletion, folders are listed again, and the two newest commits and their attempts' documents are read again.

A sweep deletes no data before its folder is known to be void; a COMMIT that arrives meanwhile wins. Files of the
calling or a higher attempt, of unknown owner, or of an attempt whose folders may be away, are not touched. What cannot
be removed delays nothing else: one warning names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress, islice
from typing import TypeVar

from ckptkit.checkpoint.commit import (
    keys_below,
    list_names,
    read_commit,
    remove_checkpoint,
    remove_data,
    void_or_leave,
)
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
from ckptkit.format.layout import (
    ATTEMPTS,
    CHECKPOINTS,
    COMMIT,
    EVENTS,
    FROZEN,
    RUN,
    CheckpointName,
    attempt_key,
    attempt_of,
    checkpoints_prefix,
    frozen_folder,
    parse_frozen,
    segment_key,
)
from ckptkit.run.event_log import segments_of
from ckptkit.run.index import Documents, Lineage, Survey
from ckptkit.run.keep_policy import Keepable, KeepPolicy
from ckptkit.run.ownership import check_fence, read_attempt, read_run
from ckptkit.storage import Storage
from ckptkit.storage.capacity import in_pages

_log = logging.getLogger("ckptkit")
_FAILED_STARTS = 2  # this many failed starts stay on record; only older ones are removed

_T = TypeVar("_T")


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
        *,
        is_elsewhere: Callable[[CheckpointName], bool] = lambda name: False,
        is_uploaded: Callable[[CheckpointName], bool] = lambda name: False,
    ) -> None:
        self._storage = storage
        self._attempt = attempt
        self._policy = policy
        self._is_elsewhere, self._is_uploaded = is_elsewhere, is_uploaded  # at a mirror; to a mirror at this moment
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
            while lacking_bytes() > 0 and (chosen := self._expendable(lacking_bytes(), stuck)):
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
        living = {folder.name.attempt for folder in self._folders.values() if isinstance(folder.commit, Commit)}
        ended = {name.attempt for name in removed if name.attempt < self._attempt.attempt} - living
        remove_frozen_of(ended, self._storage, self._attempt.token, self._check_fence)
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
        spared = [*newest_first[:2], *(folder for folder in newest_first if self._is_uploaded(folder.name))]
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


def sweep(
    storage: Storage, attempt: AttemptDocument, *, has_mirror: bool, given_up: Collection[CheckpointName] = ()
) -> list[CheckpointName]:
    """Void and then empty the uncommitted folders of earlier attempts, and ``given_up``; return the emptied ones."""
    survey = Survey(storage)  # this may take long: list before the fence check, so that deletions follow it closely
    check = partial(check_fence, storage, attempt)
    check()
    _clear_unfinished(storage, attempt)
    earlier = [name for name in survey.names if name.attempt < attempt.attempt or name in given_up]
    emptied: list[CheckpointName] = []

    def empty(name: CheckpointName) -> None:
        if not survey.has_remains(name):
            return
        is_void = COMMIT in survey.files(name) or void_or_leave(storage, name, attempt.token)
        if is_void and remove_data(storage, name):
            emptied.append(name)

    remove_each(storage, earlier, empty, check)
    living = {name.attempt for name in earlier if survey.is_committed(name)}
    numbers = {number for folder in storage.list(FROZEN).folders if (number := parse_frozen(folder)) is not None}
    ended = [number for number in numbers - living if number < attempt.attempt and survey.shows_end_of(number)]
    remove_frozen_of(ended, storage, attempt.token, check)
    delete_each(storage, _old_voids(survey, attempt), check)
    if not has_mirror:
        _forget_failed_starts(storage, survey, attempt)
    return emptied


def remove_each(
    storage: Storage,
    items: Iterable[_T],
    remove: Callable[[_T], object],
    check: Callable[[], object],
    warned: Collection[object] = (),
) -> set[_T]:
    """Call ``remove`` for each of ``items``, go on after a StorageError, and return what is stuck.

    One line of the log names what is stuck and not in ``warned``. After an error, ``check`` is called: if it raises,
    the storage does not answer at all, or another process has taken the run over meanwhile.
    """
    stuck: dict[_T, StorageError] = {}
    for item in items:
        try:
            remove(item)
        except StorageError as error:
            check()
            stuck[item] = error
    new = [item for item in stuck if item not in warned]
    if new:
        _log.warning(
            "%s%s could not be removed from %s: %s. This stays and costs space. Remove it, or let this user do so: see "
            "its owner and mode, `lsattr`, and the bucket's holds and policies",
            *(new[0], f" and {len(new) - 1} more" if len(new) > 1 else "", storage.url),
            " ".join(str(stuck[new[0]]).split()).rstrip("."),
        )
    return set(stuck)


def delete_each(storage: Storage, keys: Sequence[str], check: Callable[[], object]) -> set[str]:
    """Delete ``keys`` in one call, and one by one where that fails, as `remove_each` does; return what is stuck."""
    try:
        if keys:
            storage.delete(keys)
    except StorageError:
        return remove_each(storage, keys, lambda key: storage.delete([key]), check)
    return set()


def remove_frozen_of(attempts: Collection[int], storage: Storage, token: str, check: Callable[[], object]) -> set[str]:
    """Call `remove_frozen` for each of ``attempts``, as `remove_each` does; return the folders that are stuck."""
    folders = {frozen_folder(number): number for number in sorted(attempts)}
    return remove_each(storage, folders, lambda key: remove_frozen(storage, folders[key], token), check)


def remove_frozen(storage: Storage, attempt: int, token: str) -> None:
    """Delete the frozen shards of the dead ``attempt`` if it has no commit left that refers to them.

    First its folders without a COMMIT are voided, by ``token``.
    """
    # List again: a COMMIT that arrived after the earlier look, or before its void, shows only now.
    survey = Survey(storage, attempt)
    if any(map(survey.is_committed, survey.names)):
        return
    # Then check in another way: a commit that both looks missed would need the shards that are deleted here.
    index = Documents(storage)
    names = list_names(storage, checkpoints_prefix(attempt))
    if any(map(index.is_committed, names)):
        return
    # If the removal of a COMMIT failed, a power loss may bring it back, unless a void marker has its place.
    undecided = [name for name in names if index.commit(name) is None]
    if all(void_or_leave(storage, name, token) for name in undecided):
        storage.delete(keys_below(storage, frozen_folder(attempt)))


def _clear_unfinished(storage: Storage, attempt: AttemptDocument) -> None:
    def is_dead(key: str) -> bool:
        writer = attempt_of(key)
        # run.json exists since this attempt was opened, so nobody needs the temporary file of another creation.
        return key == RUN or (writer is not None and writer < attempt.attempt)

    # An object store keeps no half of a file created by one small put, so no request is spent there.
    small = () if storage.is_remote else (f"{EVENTS}/", RUN)
    try:
        for prefix in (f"{ATTEMPTS}/", f"{CHECKPOINTS}/", f"{FROZEN}/", *small):
            storage.clear_unfinished(prefix, is_dead)
    except StorageError as error:
        # This may need extra permissions, and leftovers only cost space: the rest of the sweep must go on.
        _log.warning("could not clear unfinished writes of earlier attempts; a later start will: %s", error)


def _forget_failed_starts(storage: Storage, survey: Survey, attempt: AttemptDocument) -> None:
    """Remove what is left of failed starts: attempts between the parent's and this one that committed nothing.

    The last few stay, and so does the last attempt of a copy. This attempt has read the checkpoint that they started
    from, so it would have seen their commits; after a start from a named one, `ckptkit prune` may have removed those.
    """
    parent = CheckpointName.parse(attempt.parent or "")
    if parent is None or attempt.branch is not None or attempt.attempt - parent.attempt - 1 <= _FAILED_STARTS:
        return  # without a parent, checkpoints/ may be unreachable
    numbers = survey.attempts | survey.orphans
    failed = sorted(number for number in numbers if parent.attempt < number < attempt.attempt)
    run = read_run(storage)
    ends_copy = run.copied_from.last_attempt if run is not None and run.copied_from is not None else None
    for place, number in enumerate(reversed(failed)):
        names = survey.names_of(number)
        if any(map(survey.is_committed, names)):
            return  # this attempt may have continued from a lower one
        if place < _FAILED_STARTS or number == ends_copy:
            continue
        document = read_attempt(storage, number)
        began_alike = document is not None and (document.parent, document.branch) == (attempt.parent, None)
        if not all(map(survey.is_bare_void, names)) or not began_alike:
            return
        # The document last: without it, no later sweep would look for the rest. Of the segments, the last one first: a
        # deletion that stops halfway leaves no gap.
        segments = [segment_key(*place) for place in reversed(segments_of(storage, number))]
        storage.delete([*(name.commit_key for name in names), *segments])
        storage.delete([attempt_key(number)])


def _old_voids(survey: Survey, attempt: AttemptDocument) -> list[str]:
    """Return the void markers of attempts below those of the two newest commits of this attempt's lineage.

    A COMMIT that arrives that late makes no difference: a start takes one of these two commits.
    """
    second = next(islice(filter(survey.is_committed, reversed(survey.names)), 1, None), None)
    voids = [name for name in survey.names if second and name.attempt < second.attempt and survey.is_bare_void(name)]
    if not voids:
        return []
    newer: list[CheckpointName] = []
    for segment in Lineage(survey, attempt.attempt).down_to(voids[0].attempt):
        there = (name for name in reversed(survey.names) if name in segment and survey.is_committed(name))
        newer += [name for name in islice(there, 2) if not survey.is_foreign(name)]
        if len(newer) > 1:
            return [name.commit_key for name in voids if name.attempt < newer[1].attempt]
    return []
