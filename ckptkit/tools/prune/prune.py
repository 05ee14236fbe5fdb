"""Removes checkpoints by hand, also during a running job, without taking over the run.

Guarantees: everything removed was in the plan that the user has seen, and in a second one made right before; COMMITs
go before data. A job that started meanwhile gets back what it began with, and then nothing else is removed. After an
interruption at any moment, a start takes the same checkpoint as before, and the same call, or the next start, removes
the rest. ``docs/adr/0005`` has the order of steps; ``tests/crash/protocol/prune.pml`` checks it. Any single thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ckptkit.checkpoint.commit import create_once, keys_below, list_attempts, read_commit, remove_data, void_or_leave
from ckptkit.errors import StaleAttemptError
from ckptkit.format.documents import encode
from ckptkit.format.layout import CheckpointName, attempt_key, frozen_folder
from ckptkit.run.sweep import delete_each, remove_each, remove_frozen
from ckptkit.storage import Storage
from ckptkit.tools.prune.plan import PrunePlan, Rule, plan_prune

_log = logging.getLogger("ckptkit")
_BATCH = 100  # checkpoints whose COMMITs are deleted before one check for new attempts


@dataclass
class Pruned:
    """Records what was removed; names oldest first.

    Attributes:
        removed: Checkpoints.
        emptied: Folders that held no checkpoint.
        spared: Planned checkpoints that now have to stay, or that another process removed.
        stuck: What could not be removed; the log says why.
    """

    removed: list[str] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)


def prune(
    storage: Storage,
    plan: PrunePlan,
    rules: Sequence[Rule],
    *,
    branches: bool,
    unfinished: bool = False,
    token: str,
    done: Callable[[CheckpointName], None] = lambda name: None,
) -> Pruned:
    """Carry out ``plan``, as far as it still holds.

    Args:
        storage: The run root.
        plan: The plan that was agreed to.
        rules: As for `plan_prune`.
        branches: As for `plan_prune`.
        unfinished: As for `plan_prune`.
        token: 32 fresh random hexadecimal digits, stored in void markers.
        done: Called with each removed checkpoint.

    Raises:
        StaleAttemptError: If a job started meanwhile; what it may need was put back.
        CkptKitError: As for `plan_prune`.
        StorageError: If the storage failed; the same call removes the rest.
    """
    storage.probe()
    now = plan_prune(storage, rules, branches=branches, unfinished=unfinished)
    pruned = Pruned(spared=[str(name) for name in plan.doomed if name not in now.commits])
    seen = set(plan.doomed)
    agreed = [name for name in now.doomed if name in seen]
    for first in range(0, len(agreed), _BATCH):
        batch = agreed[first : first + _BATCH]
        removed = _remove(storage, now, batch, done)
        pruned.removed += map(str, removed)
        pruned.stuck += [str(name) for name in batch if name not in removed]

    def empty(name: CheckpointName) -> None:
        if unfinished and read_commit(storage, name) is None:  # first: a full disk has no room for the void marker
            storage.delete(keys_below(storage, name.folder))
            pruned.emptied.append(str(name))
        elif void_or_leave(storage, name, token) and remove_data(storage, name):
            pruned.emptied.append(str(name))

    answers = partial(list_attempts, storage)
    remains = [name for name in now.remains if name in plan.remains]
    pruned.stuck += map(str, remove_each(storage, remains, empty, answers))
    frozen = {frozen_folder(number): number for number in now.frozen if number in plan.frozen}
    pruned.stuck += remove_each(storage, frozen, lambda key: remove_frozen(storage, frozen[key], token), answers)
    return pruned


def _remove(
    storage: Storage, plan: PrunePlan, batch: Sequence[CheckpointName], done: Callable[[CheckpointName], None]
) -> list[CheckpointName]:
    """Remove ``batch``; return what of it was removed."""
    answers = partial(list_attempts, storage)
    stuck = delete_each(storage, [name.commit_key for name in batch], answers)
    left = {name for name in batch if name.commit_key in stuck}
    # Only after deleting the COMMITs: a start creates its attempt, then checks that its parent is still committed. So
    # either it sees the missing COMMIT, or its attempt is seen here.
    started = sorted(list_attempts(storage) - plan.attempts)
    if started:
        lost = [name for name in batch if not _put_back(storage, plan, name)]
        also = f" Not restored, since the job has voided them: {', '.join(map(str, lost))}." if lost else ""
        raise StaleAttemptError(
            f"a job has just started on {storage.url} ({attempt_key(started[-1])}). The checkpoints about to be "
            f"removed were restored, because the job may continue from one of them.{also} Run the same command again "
            "for a new plan."
        )

    def remove(name: CheckpointName) -> None:
        storage.delete([key for key in keys_below(storage, name.folder) if key != name.commit_key])
        done(name)

    left |= remove_each(storage, [name for name in batch if name not in left], remove, answers)
    return [name for name in batch if name not in left]


def _put_back(storage: Storage, plan: PrunePlan, name: CheckpointName) -> bool:
    data = encode(plan.commits[name])
    return create_once(storage, name.commit_key, data) == data
