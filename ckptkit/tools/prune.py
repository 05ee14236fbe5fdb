"""Decides which checkpoints of a run may be removed by hand, and why the others stay; and removes them.

Whatever is requested, these stay: the two newest checkpoints of the lineage that can be opened, and any newer ones that
cannot; the same of each newer attempt, which may be starting now; whatever does not parse; and what an attempt with an
unreadable document may need.

Everything removed was in the plan that the user has seen, and in a second one made right before; COMMITs go before
data. A job that started meanwhile gets back what it began with, and then nothing else is removed. After an interruption
at any moment, a start takes the same checkpoint as before, and the same call, or the next start, removes the rest.
``docs/adr/0005`` has the order of steps; ``tests/crash/protocol/prune.pml`` checks it. Any single thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from ckptkit.checkpoint.commit import create_once, keys_below, list_attempts, read_commit, remove_data, void_or_leave
from ckptkit.checkpoint.open import check_token, open_checkpoint, read_metrics
from ckptkit.checkpoint.read import check_sizes
from ckptkit.checkpoint.receipts import certified_from
from ckptkit.core.text import some
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, StaleAttemptError, UnusableCheckpointError
from ckptkit.format.documents import Commit, encode
from ckptkit.format.layout import FROZEN, CheckpointName, attempt_key, attempt_of
from ckptkit.run.index import Lineage, Survey, segment_before
from ckptkit.run.keep_policy import Keepable, KeepPolicy, rankings
from ckptkit.run.ownership import read_run, refuse_unfinished
from ckptkit.run.resolve import Head, choose, newest_head
from ckptkit.run.retention import delete_each, remove_each, remove_frozen_of
from ckptkit.storage import Storage

_BATCH = 100  # checkpoints whose COMMITs are deleted before one check for new attempts


class Rule(NamedTuple):
    """Holds a policy and its text on the command line."""

    words: str
    policy: KeepPolicy


@dataclass(frozen=True)
class PruneDecision:
    """Says what happens to one committed checkpoint, and why."""

    name: CheckpointName
    size_bytes: int  # of the files in its folder
    goes: bool
    why: str


@dataclass(frozen=True)
class PrunePlan:
    """Lists what is to be removed, from one survey of the run."""

    decisions: tuple[PruneDecision, ...] = ()  # for each committed checkpoint, oldest attempt first
    remains: Mapping[CheckpointName, int] = field(default_factory=dict)  # bytes of folders that no process writes
    frozen: Mapping[int, int] = field(default_factory=dict)  # shared bytes of attempts without a checkpoint left
    problems: tuple[str, ...] = ()  # what cannot be read, and so prevents removals
    commits: Mapping[CheckpointName, Commit] = field(default_factory=dict)  # of the checkpoints that are to go
    attempts: frozenset[int] = frozenset()  # that had a document
    unfinished_bytes: int = 0  # of saves that may be under way, and so stay
    rules: Sequence[Rule] = ()  # these three are what it was made with
    branches: bool = False
    unfinished: bool = False

    @property
    def doomed(self) -> tuple[CheckpointName, ...]:
        return tuple(decision.name for decision in self.decisions if decision.goes)

    @property
    def freed_bytes(self) -> int:
        folders = sum(decision.size_bytes for decision in self.decisions if decision.goes)
        return folders + sum(self.remains.values()) + sum(self.frozen.values())


def plan_prune(storage: Storage, rules: Sequence[Rule], *, branches: bool, unfinished: bool = False) -> PrunePlan:
    """Make the plan from one survey of the run, without writing.

    A checkpoint of the lineage stays if any rule keeps it, or if there are no rules; one off the lineage, without
    ``branches``. ``unfinished`` says that no job is running, so that no folder without COMMIT is one of a save that is
    under way. Raises ResumeError if the run is an unfinished copy, and CorruptCheckpointError if there are checkpoints,
    and no attempt's document leads to one.
    """
    survey = Survey(storage)
    refuse_unfinished(storage, survey, read_run(storage))
    choose(survey)  # raises if a start would not know what to do either
    head, _ = newest_head(survey)
    if head is not None:
        plan = _Planner(storage, survey, head).plan(rules, branches=branches, unfinished=unfinished)
    elif unfinished:
        plan = PrunePlan(remains=_remains(survey), attempts=survey.attempts)
    else:
        plan = PrunePlan(attempts=survey.attempts, unfinished_bytes=sum(_remains(survey).values()))
    return replace(plan, rules=rules, branches=branches, unfinished=unfinished)


class _Planner:
    def __init__(self, storage: Storage, survey: Survey, head: Head) -> None:
        self._storage = storage
        self._survey = survey
        self._committed = [name for name in survey.names if survey.is_committed(name)]
        self._problems: list[str] = []
        numbers = sorted(survey.attempts | survey.orphans)
        broken = dict(zip(numbers, each_of(numbers, self._fault_of), strict=True))
        self._broken = {number for number, fault in broken.items() if fault}
        self._problems += [fault for fault in broken.values() if fault]
        self._newest = numbers[-1]
        self._head = head.lineage.whole()
        head_number = self._head.segments[0].attempt
        # One of them may be starting now, without its own commit yet.
        newer = [number for number in numbers if number > head_number and number not in self._broken]
        self._newer = {number: Lineage(survey, number).whole() for number in newer}
        for lineage in (self._head, *self._newer.values()):
            # Also one with no files left: its parent is unknown too.
            if lineage.broken_at is not None and lineage.broken_at not in self._broken:
                self._broken.add(lineage.broken_at)
                self._problems.append(str(lineage.broken))
        each_of(self._committed, survey.commit)
        self._faults: dict[CheckpointName, str | None] = {}

    def plan(self, rules: Sequence[Rule], *, branches: bool, unfinished: bool) -> PrunePlan:
        stays = self._stays(rules, branches=branches)
        decisions = []
        for name in self._committed:
            gone = "no --keep asks for it" if name in self._head else "off the lineage"
            size_bytes = sum(self._survey.files(name).values())
            decisions.append(PruneDecision(name, size_bytes, name not in stays, stays.get(name, gone)))
        doomed = {decision.name for decision in decisions if decision.goes}
        remains, last = _remains(self._survey), self._last_own()
        # No process writes below the newest attempt's highest commit: it saves in order, and other attempts are fenced.
        above = [name for name in remains if last is None or name > last]
        under_way = {name: remains.pop(name) for name in above if not unfinished}
        return PrunePlan(
            tuple(decisions),
            remains,
            self._frozen(doomed),
            tuple(self._problems),
            {name: commit for name in doomed if isinstance(commit := self._survey.commit(name), Commit)},
            self._survey.attempts,
            sum(under_way.values()),
        )

    def _stays(self, rules: Sequence[Rule], *, branches: bool) -> dict[CheckpointName, str]:
        """Return the reason to stay by name; the others may go. A later, stronger reason replaces an earlier one."""
        on_lineage = [name for name in self._sound_commits() if name in self._head]
        stays = dict.fromkeys(on_lineage, "no --keep was given") if not rules else self._kept(rules, on_lineage)
        highest = max(self._broken, default=0)
        for name in self._committed:
            if name not in self._head and not branches:
                stays[name] = "off the lineage; --branches removes it"
            if name not in self._head and any(name in lineage for lineage in self._newer.values()):
                stays[name] = "a newer attempt may continue from it"
            # Only an attempt's document tells its parent, which belongs to an earlier attempt.
            if name.attempt < highest and (name not in self._head or highest > self._head.segments[0].attempt):
                stays[name] = f"{attempt_key(highest)} cannot be read, and may need it"
            if name.attempt in self._broken:
                stays[name] = f"{attempt_key(name.attempt)} cannot be read"
            commit = self._survey.commit(name)
            if commit is None:
                stays[name] = "it was removed meanwhile"  # by a running job: not a problem
            elif not isinstance(commit, Commit):
                stays[name] = "its COMMIT cannot be read"
                self._problems.append(str(commit))
            elif self._survey.is_foreign(name):
                stays[name] = "its COMMIT has another token"
                self._problems.append(f"{name.commit_key} has another token than {attempt_key(name.attempt)}")
        for lineage in (*self._newer.values(), self._head):
            stays.update(self._spared(lineage))
        return stays

    def _kept(self, rules: Sequence[Rule], names: Sequence[CheckpointName]) -> dict[CheckpointName, str]:
        metrics: dict[CheckpointName, Mapping[str, float]] = {}
        stays: dict[CheckpointName, str] = {}
        if any(rule.policy.needs_metrics for rule in rules):
            for name, values in zip(names, each_of(names, self._metrics), strict=True):
                if isinstance(values, str):
                    stays[name] = "its metrics cannot be read"
                    self._problems.append(values)
                else:
                    metrics[name] = values
            known = sorted({metric for values in metrics.values() for metric in values})
            for metric in [best.metric for rule in rules for best in rankings(rule.policy)]:
                if known and metric not in known:  # likely a typing error, which would remove the best
                    raise CheckpointNotFoundError(
                        f"nothing was removed: no checkpoint of {self._storage.url} has the metric {metric!r}; there "
                        f"are: {some(known)}"
                    )
        judged = [
            Keepable(
                str(name),
                name.cycles,
                name.micro_step,
                metrics.get(name, {}),
                bool(certified_from(self._survey.files(name))),
            )
            for name in names
            if name not in stays
        ]
        kept = {rule.words: rule.policy.keeps(judged) for rule in rules}
        for name in names:
            wanted = [words for words, these in kept.items() if str(name) in these]
            if wanted:
                stays[name] = f"--keep {', '.join(wanted)}"
        return stays

    def _spared(self, lineage: Lineage) -> dict[CheckpointName, str]:
        """Return the two newest that can be opened, and the newer ones that cannot."""
        spared: dict[CheckpointName, str] = {}
        sound = 0
        for name in reversed([name for name in self._sound_commits() if name in lineage]):
            fault = self._fault_of_checkpoint(name)
            if fault is None:
                spared[name] = "the latest" if not sound else "one of the two newest"
                sound += 1
            else:
                spared[name] = "newer than the two newest that can be opened"
            if sound == 2:
                break
        return spared

    def _sound_commits(self) -> list[CheckpointName]:
        return [
            name
            for name in self._committed
            if isinstance(self._survey.commit(name), Commit) and not self._survey.is_foreign(name)
        ]

    def _fault_of(self, attempt: int) -> str | None:
        try:
            segment_before(self._survey.document(attempt))
        except UnusableCheckpointError as error:
            return str(error)
        return None

    def _fault_of_checkpoint(self, name: CheckpointName) -> str | None:
        """Return why it is unusable, judging by its documents and the sizes of its files."""
        if name not in self._faults:
            self._faults[name] = None
            try:
                check_sizes(self._storage, open_checkpoint(self._storage, name, self._survey.document(name.attempt)))
            except (UnusableCheckpointError, CheckpointNotFoundError) as error:
                self._faults[name] = str(error)
                self._problems.append(str(error))
        return self._faults[name]

    def _metrics(self, name: CheckpointName) -> Mapping[str, float] | str:
        commit = self._survey.commit(name)
        assert isinstance(commit, Commit)  # noqa: S101 - asked of these only
        try:
            check_token(name, commit, self._survey.document(name.attempt))
            return read_metrics(self._storage, name, commit)
        except (UnusableCheckpointError, CheckpointNotFoundError) as error:
            return str(error)

    def _last_own(self) -> CheckpointName | None:
        """Return the newest attempt's highest commit."""
        return max((name for name in self._committed if name.attempt == self._newest), default=None)

    def _frozen(self, doomed: set[CheckpointName]) -> dict[int, int]:
        if self._last_own() is None:
            return {}  # the newest attempt may be uploading the checkpoint that it began with
        living = {name.attempt for name in self._committed if name not in doomed}
        shared: dict[int, int] = {}
        for key, size_bytes in self._storage.walk(f"{FROZEN}/").items():
            number = attempt_of(key)
            if number is not None and number < self._newest and number not in living:
                shared[number] = shared.get(number, 0) + size_bytes
        return {number: size_bytes for number, size_bytes in shared.items() if self._survey.shows_end_of(number)}


def _remains(survey: Survey) -> dict[CheckpointName, int]:
    """Return the bytes of each folder that holds data and no checkpoint."""
    return {name: sum(survey.files(name).values()) for name in survey.names if survey.has_remains(name)}


@dataclass
class Pruned:
    """Records what was removed; names oldest first."""

    removed: list[str] = field(default_factory=list)
    emptied: list[str] = field(default_factory=list)  # folders that held no checkpoint
    spared: list[str] = field(default_factory=list)  # that now have to stay, or that another process removed
    stuck: list[str] = field(default_factory=list)  # the log says why


def prune(
    storage: Storage, plan: PrunePlan, *, token: str, done: Callable[[CheckpointName], None] = lambda name: None
) -> Pruned:
    """Carry out the ``plan`` that was agreed to, as far as it still holds.

    ``token`` is 32 fresh random hexadecimal digits, stored in void markers; ``done`` is called with each removed
    checkpoint. Raises StaleAttemptError if a job started meanwhile, after what it may need was put back, and
    StorageError if the storage failed; the same call removes the rest.
    """
    storage.probe()
    now = plan_prune(storage, plan.rules, branches=plan.branches, unfinished=plan.unfinished)
    pruned = Pruned(spared=[str(name) for name in plan.doomed if name not in now.commits])
    seen = set(plan.doomed)
    agreed = [name for name in now.doomed if name in seen]
    for first in range(0, len(agreed), _BATCH):
        batch = agreed[first : first + _BATCH]
        removed = _remove(storage, now, batch, done)
        pruned.removed += map(str, removed)
        pruned.stuck += [str(name) for name in batch if name not in removed]

    def empty(name: CheckpointName) -> None:
        if plan.unfinished and read_commit(storage, name) is None:  # first: a full disk has no room for the void marker
            storage.delete(keys_below(storage, name.folder))
            pruned.emptied.append(str(name))
        elif void_or_leave(storage, name, token) and remove_data(storage, name):
            pruned.emptied.append(str(name))

    answers = partial(list_attempts, storage)
    remains = [name for name in now.remains if name in plan.remains]
    pruned.stuck += map(str, remove_each(storage, remains, empty, answers))
    pruned.stuck += sorted(remove_frozen_of(now.frozen.keys() & plan.frozen.keys(), storage, token, answers))
    return pruned


def _remove(
    storage: Storage, plan: PrunePlan, batch: Sequence[CheckpointName], done: Callable[[CheckpointName], None]
) -> list[CheckpointName]:
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
