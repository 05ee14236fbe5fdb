"""Removes what is no longer wanted: old checkpoints by policy, and the remains of saves that never committed.

Guarantees: runs after a commit and never before one; keeps the two newest commits of the lineage, the parent
until this attempt has two commits of its own, everything off the lineage and everything it cannot parse,
whatever the policy says; looks for a later attempt before each round and then deletes nothing. COMMIT goes
first, so a reader never takes a part for a whole. Writer thread, or training thread while no save is under way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from ckptkit.errors import CheckpointNotFoundError, CorruptCheckpointError
from ckptkit.manifest import AttemptDocument, Commit, Void
from ckptkit.policies import Keepable, KeepPolicy
from ckptkit.run.attempt import check_fence
from ckptkit.run.commit import keys_below, remove_checkpoint, remove_data, void
from ckptkit.run.find import Index
from ckptkit.run.lineage import trace
from ckptkit.run.names import FROZEN, CheckpointName, frozen_folder, parse_frozen
from ckptkit.run.read import open_checkpoint
from ckptkit.storage import Storage

_log = logging.getLogger("ckptkit")


class Retention:
    """What one attempt keeps.

    Args:
        storage: The run root.
        attempt: The attempt that owns the run.
        policy: What to keep beyond what is always kept.
    """

    def __init__(self, storage: Storage, attempt: AttemptDocument, policy: KeepPolicy) -> None:
        self._storage = storage
        self._attempt = attempt
        self._policy = policy
        self._metrics: dict[CheckpointName, Mapping[str, float]] = {}

    def sweep(self) -> list[CheckpointName]:
        """Void, then empty, the uncommitted folders of earlier attempts; returns what was emptied.

        Raises:
            StaleAttemptError: If a later attempt exists; nothing was deleted.
            StorageError: If the storage failed; what is left is for the next sweep.
        """
        check_fence(self._storage, self._attempt)
        index = Index(self._storage)
        emptied = [
            name
            for name in index.names
            if name.attempt < self._attempt.attempt and self._is_dead(index, name) and remove_data(self._storage, name)
        ]
        # A new look: a COMMIT that came before its void is in none of the answers above.
        self._remove_frozen(Index(self._storage))
        return emptied

    def prune(self) -> list[CheckpointName]:
        """Remove the checkpoints of the own lineage that nothing asks to keep; returns them, oldest first.

        Raises:
            StaleAttemptError: If a later attempt exists; nothing was deleted.
            StorageError: If the storage failed. A checkpoint that lost its COMMIT and nothing else yet is for the
                sweep of the next attempt.
        """
        check_fence(self._storage, self._attempt)
        index = Index(self._storage)
        doomed = list(self._doomed(index))
        for name in doomed:
            remove_checkpoint(self._storage, name)
        if doomed:
            self._remove_frozen(Index(self._storage))
        return doomed

    def _is_dead(self, index: Index, name: CheckpointName) -> bool:
        """Whether ``name`` is void, after voiding it if it was uncommitted."""
        commit = index.commit(name)
        if commit is not None:
            return isinstance(commit, Void)
        try:
            return isinstance(void(self._storage, name, self._attempt.token), Void)
        except CorruptCheckpointError:
            return False

    def _doomed(self, index: Index) -> Iterator[CheckpointName]:
        lineage = trace(index, self._attempt.attempt)
        newest_first = [name for name in index.committed_on(lineage) if isinstance(index.commit(name), Commit)]
        # Until there are two own commits, the parent is one of these.
        spared = set(newest_first[:2])
        known = [name for name in reversed(newest_first) if self._can_be_judged(index, name)]
        kept = self._policy.keeps([self._keepable(name) for name in known])
        yield from (name for name in known if name not in spared and str(name) not in kept)

    def _can_be_judged(self, index: Index, name: CheckpointName) -> bool:
        if not self._policy.needs_metrics or name in self._metrics:
            return True
        try:
            opened = open_checkpoint(self._storage, name, index.document(name.attempt))
        except (CorruptCheckpointError, CheckpointNotFoundError) as error:
            _log.warning("%s is kept, because its metrics cannot be read: %s", name, error)
            return False
        metrics = opened.manifest.metrics
        self._metrics[name] = {key: value for key, value in metrics.items() if value is not None}
        return True

    def _keepable(self, name: CheckpointName) -> Keepable:
        return Keepable(str(name), name.cycles, name.micro_step, self._metrics.get(name, {}))

    def _remove_frozen(self, index: Index) -> None:
        """Delete the frozen shards of earlier attempts that have no commit left to refer to them."""
        for folder in sorted(self._storage.list(FROZEN).folders):
            attempt = parse_frozen(folder)
            if attempt is None or attempt >= self._attempt.attempt:
                continue
            if not any(name.attempt == attempt and index.is_committed(name) for name in index.names):
                self._storage.delete(keys_below(self._storage, frozen_folder(attempt)))
