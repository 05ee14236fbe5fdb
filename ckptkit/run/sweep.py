"""Removes what dead attempts left: unfinished writes, the data of saves that never committed, frozen shards.

No data is deleted before its folder is known to be void; a COMMIT that arrives meanwhile wins. Files of the calling or
a higher attempt, of unknown owner, or of an attempt whose folders may be away, are not touched. What cannot be removed
delays nothing else: one warning names it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from ckptkit.checkpoint.commit import keys_below, list_attempts, list_names, remove_data, void_or_leave
from ckptkit.errors import StorageError
from ckptkit.format.documents import AttemptDocument
from ckptkit.format.layout import (
    ATTEMPTS,
    CHECKPOINTS,
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
from ckptkit.run.fence import check_fence, read_attempt, read_run
from ckptkit.run.index import Documents, Folders, Lineage
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")
_FAILED_STARTS = 2  # this many failed starts stay on record; only older ones are removed

_T = TypeVar("_T")


def sweep(
    storage: Storage, attempt: AttemptDocument, *, has_mirror: bool, stuck: set[object] | None = None
) -> list[CheckpointName]:
    """Void and then empty the uncommitted folders of earlier attempts; return the emptied ones."""
    folders = Folders(storage)  # this may take long: list before the fence check, so that deletions follow it closely
    check = partial(check_fence, storage, attempt)
    check()
    _clear_unfinished(storage, attempt)
    earlier = [name for name in folders.names if name.attempt < attempt.attempt]
    emptied: list[CheckpointName] = []

    def empty(name: CheckpointName) -> None:
        if not folders.has_remains(name):
            return
        is_void = not folders.is_uncommitted(name) or void_or_leave(storage, name, attempt.token)
        if is_void and remove_data(storage, name):
            emptied.append(name)

    stuck = set() if stuck is None else stuck
    names = remove_each(storage, earlier, empty, check, stuck)
    living = {name.attempt for name in earlier if folders.is_committed(name)}
    numbers = {number for folder in storage.list(FROZEN).folders if (number := parse_frozen(folder)) is not None}
    ended = {
        frozen_folder(number): number
        for number in sorted(numbers - living)
        if number < attempt.attempt and folders.shows_end_of(number)
    }
    keys = remove_each(storage, ended, lambda key: remove_frozen(storage, ended[key], attempt.token), check, stuck)
    keys |= delete_each(storage, _old_voids(storage, folders, attempt), check, stuck)
    stuck.clear()
    stuck.update(names, keys)
    if not has_mirror:
        _forget_failed_starts(storage, folders, attempt)
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


def delete_each(
    storage: Storage, keys: Sequence[str], check: Callable[[], object], warned: Collection[object] = ()
) -> set[str]:
    """Delete ``keys`` in one call, and one by one where that fails, as `remove_each` does; return what is stuck."""
    try:
        if keys:
            storage.delete(keys)
    except StorageError:
        return remove_each(storage, keys, lambda key: storage.delete([key]), check, warned)
    return set()


def remove_frozen(storage: Storage, attempt: int, token: str) -> None:
    """Delete the frozen shards of the dead ``attempt`` if it has no commit left that refers to them.

    First its folders without a COMMIT are voided, by ``token``.
    """
    # List again: a COMMIT that arrived after the earlier look, or before its void, shows only now.
    folders = Folders(storage, attempt)
    if any(map(folders.is_committed, folders.names)):
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


def _forget_failed_starts(storage: Storage, folders: Folders, attempt: AttemptDocument) -> None:
    """Remove what is left of failed starts: attempts between the parent's and this one that committed nothing.

    The last few stay, and so does the last attempt of a copy. This attempt has read the checkpoint that they started
    from, so it would have seen their commits; after a start from a named one, `ckptkit prune` may have removed those.
    """
    parent = CheckpointName.parse(attempt.parent or "")
    if parent is None or attempt.branch is not None or attempt.attempt - parent.attempt - 1 <= _FAILED_STARTS:
        return  # without a parent, checkpoints/ may be unreachable
    numbers = list_attempts(storage) | {name.attempt for name in folders.names}
    failed = sorted(number for number in numbers if parent.attempt < number < attempt.attempt)
    run = read_run(storage)
    ends_copy = run.copied_from.last_attempt if run is not None and run.copied_from is not None else None
    for place, number in enumerate(reversed(failed)):
        names = [name for name in folders.names if name.attempt == number]
        if any(map(folders.is_committed, names)):
            return  # this attempt may have continued from a lower one
        if place < _FAILED_STARTS or number == ends_copy:
            continue
        document = read_attempt(storage, number)
        began_alike = document is not None and (document.parent, document.branch) == (attempt.parent, None)
        if not all(map(folders.is_bare_void, names)) or not began_alike:
            return
        # The document last: without it, no later sweep would look for the rest. Of the segments, the last one first: a
        # deletion that stops halfway leaves no gap.
        segments = [segment_key(*place) for place in reversed(segments_of(storage, number))]
        storage.delete([*(name.commit_key for name in names), *segments])
        storage.delete([attempt_key(number)])


def _old_voids(storage: Storage, folders: Folders, attempt: AttemptDocument) -> list[str]:
    """Return the void markers of attempts below those of the two newest commits of this attempt's lineage.

    A COMMIT that arrives that late makes no difference: a start takes one of these two commits.
    """
    second = next(islice(filter(folders.is_committed, reversed(folders.names)), 1, None), None)
    voids = [name for name in folders.names if second and name.attempt < second.attempt and folders.is_bare_void(name)]
    if not voids:
        return []
    documents = Documents(storage)
    newer: list[CheckpointName] = []
    for segment in Lineage(documents, attempt.attempt).down_to(voids[0].attempt):
        there = (name for name in reversed(folders.names) if name in segment and folders.is_committed(name))
        newer += [name for name in islice(there, 2) if not documents.is_foreign(name)]
        if len(newer) > 1:
            return [name.commit_key for name in voids if name.attempt < newer[1].attempt]
    return []
