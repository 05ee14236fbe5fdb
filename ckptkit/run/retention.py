"""Removes the checkpoints that the keep policy no longer wants.

Guarantees: retention runs after a commit, and before one only where a save would not fit into memory. Whatever the
policy says, it keeps the two newest commits of the lineage, the parent until this attempt has two commits of its own,
everything off the lineage, and everything that it cannot parse. But where a save would not fit, what is committed
elsewhere too may go, down to the newest commit. The fence has just been checked: if there is a later attempt, nothing
is deleted. COMMIT is removed first, so a reader never takes a partly removed checkpoint for a whole one. What was read
is cached as long as it is listed; before a deletion, the two newest commits and their attempts' documents are read
again. Threads: the writer thread, or the training thread while no save is running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ckptkit.checkpoint.commit import read_commit, remove_checkpoint
from ckptkit.checkpoint.listing import list_names
from ckptkit.checkpoint.open import check_token, read_metrics
from ckptkit.checkpoint.receipts import is_certified
from ckptkit.core.parallel import each_of
from ckptkit.errors import CheckpointNotFoundError, StaleAttemptError, UnusableCheckpointError
from ckptkit.format.documents import AttemptDocument, Commit, Void
from ckptkit.format.layout import CheckpointName, frozen_folder
from ckptkit.run.index import Documents
from ckptkit.run.keep_policy import Keepable, KeepPolicy, needs_certificates
from ckptkit.run.lineage import Ancestry
from ckptkit.run.sweep import remove_frozen
from ckptkit.storage import Storage
from ckptkit.storage.capacity import in_pages

_log = logging.getLogger("ckptkit")

Names = Sequence[CheckpointName]


class Retention:
    """Applies the keep policy of one attempt.

    Args:
        storage: The run root.
        attempt: The attempt that owns the run.
        policy: What to keep in addition to what is always kept.
        is_elsewhere: Whether a checkpoint is known to be committed at another root, too.
    """

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
        self._ancestry = Ancestry(self._documents, attempt.attempt)
        self._commits: dict[CheckpointName, Commit | Void | UnusableCheckpointError] = {}
        self._metrics: dict[CheckpointName, Mapping[str, float]] = {}
        self._certified: set[CheckpointName] = set()

    def prune(self) -> list[CheckpointName]:
        """Remove the checkpoints of this attempt's lineage that need not be kept; return them, oldest first.

        Call this only right after a fence check.

        Raises:
            StorageError: If the storage failed. If a checkpoint has lost only its COMMIT so far, the sweep of the next
                attempt removes the rest.
        """
        listed = self._list()
        doomed = self._doomed(listed)
        self._remove(doomed, listed)
        return doomed

    def make_room(
        self,
        incoming: CheckpointName,
        lacking_bytes: Callable[[], int],
        check_fence: Callable[[], object],
    ) -> list[CheckpointName]:
        """Remove checkpoints one at a time until a save fits; return them. If all would not be enough, remove none.

        First those go that the policy does not want, then those that are elsewhere, oldest first. A failure is only
        logged: whoever calls this looks whether there is room.

        Args:
            incoming: The checkpoint to be saved.
            lacking_bytes: Returns how much does not fit now.
            check_fence: Called right before each removal.

        Raises:
            StaleAttemptError: If a later attempt exists.
        """
        removed = []
        try:
            listed = self._list()
            for name in self._expendable(listed, lacking_bytes()):
                if not lacking_bytes():
                    break
                check_fence()
                self._remove([name], listed)
                removed.append(name)
                _log.info("removed %s, because the save of %s would not have fitted into memory", name, incoming)
        except StaleAttemptError:
            raise
        except Exception as error:  # noqa: BLE001 - even a keep policy may raise
            _log.warning("could not make room for %s at %s", incoming, self._storage.url, exc_info=error)
        return removed

    def _remove(self, doomed: Names, listed: Names) -> None:
        for name in doomed:
            self._commits.pop(name, None)  # first, so that after a partial removal COMMIT is read again
            remove_checkpoint(self._storage, name)
        left = {name.attempt for name in listed if isinstance(self._commits.get(name), Commit)}
        for number in sorted({name.attempt for name in doomed} - left):
            if number < self._attempt.attempt:
                remove_frozen(self._storage, number, self._attempt.token)

    def _expendable(self, listed: Names, lacking_bytes: int) -> list[CheckpointName]:
        """Return what may go to make room, in this order; nothing if it would not be enough."""
        self._learn_certified(listed)
        newest_first, judged = self._judged(listed)
        chosen = self._unwanted(newest_first, judged)
        for name in newest_first[:0:-1]:  # without the newest, oldest first
            if self._freed_bytes(chosen, newest_first) >= lacking_bytes:
                break
            if name not in chosen and self._is_elsewhere(name):
                chosen.append(name)
        is_enough = chosen and self._freed_bytes(chosen, newest_first) >= lacking_bytes
        return chosen if is_enough and self._can_be_read(newest_first[:2]) else []

    def _freed_bytes(self, chosen: Names, committed: Names) -> int:
        """Return how much memory the removal of ``chosen`` frees, with the frozen shards of attempts that then end."""
        ended = {name.attempt for name in chosen} - {name.attempt for name in committed if name not in chosen}
        folders = [name.folder for name in chosen]
        folders += [frozen_folder(number) for number in ended if number < self._attempt.attempt]
        return sum(in_pages(size) for folder in folders for size in self._storage.walk(f"{folder}/").values())

    def _list(self) -> list[CheckpointName]:
        """List the folders on the lineage, committed or not, newest first."""
        if self._ancestry.broken is not None:  # the document may have been restored
            self._ancestry = Ancestry(self._documents, self._attempt.attempt)
        names: Names = list_names(self._storage)
        # Follow the lineage only as far back as there are folders: a run may have been started a thousand times.
        oldest = min((name.attempt for name in names), default=self._attempt.attempt)
        segments = {segment.attempt: segment for segment in self._ancestry.down_to(oldest)}
        names = [name for name in names if name in segments.get(name.attempt, ())]
        # A COMMIT never changes, but a folder that disappeared may come back with another one.
        there = set(names)
        self._commits = {name: commit for name, commit in self._commits.items() if name in there}
        self._metrics = {name: metrics for name, metrics in self._metrics.items() if name in there}
        self._certified &= there
        return list(names[::-1])

    def _doomed(self, listed: Names) -> list[CheckpointName]:
        self._learn_certified(listed)
        if not self._policy.needs_metrics:
            # Count every unread folder as a commit: that can only add checkpoints to remove, never hide one.
            possible = [name for name in listed if isinstance(self._commits.get(name), Commit | None)]
            if not self._unwanted(possible, possible):
                return []
        newest_first, judged = self._judged(listed)
        doomed = self._unwanted(newest_first, judged)
        return doomed if doomed and self._can_be_read(newest_first[:2]) else []

    def _learn_certified(self, listed: Names) -> None:
        if needs_certificates(self._policy):
            others = [name for name in listed if name not in self._certified]  # another one may have got its own since
            found = each_of(others, lambda name: is_certified(self._storage, name))
            self._certified |= {name for name, certified in zip(others, found, strict=True) if certified}

    def _judged(self, listed: Names) -> tuple[Names, Names]:
        """Return the commits in ``listed``, and those of them that the policy can judge; newest first."""
        judged = newest_first = self._committed(listed)
        if self._policy.needs_metrics:
            each_of([name for name in newest_first if name not in self._metrics], self._learn_metrics)
            judged = [name for name in newest_first if name in self._metrics]
        return newest_first, judged

    def _unwanted(self, newest_first: Names, judged: Names) -> list[CheckpointName]:
        """Return the checkpoints of ``judged`` that may be removed, oldest first."""
        # The parent is one of these until this attempt has two commits.
        spared = set(newest_first[:2])
        oldest_first = judged[::-1]
        kept = self._policy.keeps(
            [
                Keepable(str(name), name.cycles, name.micro_step, self._metrics.get(name, {}), name in self._certified)
                for name in oldest_first
            ]
        )
        return [name for name in oldest_first if name not in spared and str(name) not in kept]

    def _committed(self, listed: Names) -> list[CheckpointName]:
        """Return the names in ``listed`` whose COMMIT parses; the two newest are read, not taken from the cache."""
        unread = [name for name in listed if name not in self._commits]
        each_of(unread, self._read_commit)
        anew = set(unread)
        found: list[CheckpointName] = []
        for name in listed:
            if isinstance(self._commits.get(name), Commit):
                if len(found) < 2 and name not in anew:
                    self._read_commit(name)
                if isinstance(self._commits.get(name), Commit):
                    found.append(name)
        return found

    def _read_commit(self, name: CheckpointName) -> None:
        try:
            commit: Commit | Void | UnusableCheckpointError | None = read_commit(self._storage, name)
            if isinstance(commit, Commit):
                check_token(name, commit, self._document(name))  # a foreign commit raises: it does not count, and stays
        except UnusableCheckpointError as error:
            commit = error
        if commit is None:
            self._commits.pop(name, None)  # undecided: a COMMIT may still be created
        else:
            self._commits[name] = commit

    def _can_be_read(self, newest: Names) -> bool:
        """Whether the attempt documents of ``newest`` are still intact; without them no commit can be used."""
        documents = Documents(self._storage)
        try:
            documents.document(self._attempt.attempt)
            for name in newest:
                commit = self._commits[name]
                assert isinstance(commit, Commit)  # noqa: S101 - it was read just before
                check_token(name, commit, documents.document(name.attempt))
        except UnusableCheckpointError as error:
            _log.warning("no checkpoint is removed this time: %s", error)
            self._documents, self._commits = Documents(self._storage), {}
            self._ancestry = Ancestry(self._documents, self._attempt.attempt)
            return False
        return True

    def _document(self, name: CheckpointName) -> AttemptDocument:
        own = name.attempt == self._attempt.attempt
        return self._attempt if own else self._documents.document(name.attempt)

    def _learn_metrics(self, name: CheckpointName) -> None:
        commit = self._commits[name]
        assert isinstance(commit, Commit)  # noqa: S101 - called for commits only
        try:
            self._metrics[name] = read_metrics(self._storage, name, commit)
        except (UnusableCheckpointError, CheckpointNotFoundError) as error:
            _log.warning("%s is kept, because its metrics cannot be read: %s", name, error)
