"""Decides which checkpoints of a run may be removed by hand, and why the others stay.

Guarantees: reads and never writes. Whatever is requested, these stay: the two newest checkpoints of the lineage that
can be opened, and any newer ones that cannot; the same of each newer attempt, which may be starting now; whatever does
not parse; and what an attempt with an unreadable document may need. The plan is from one survey of the run and becomes
outdated. Any single thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ckptkit.checkpoint.open import check_token, open_checkpoint, read_metrics
from ckptkit.checkpoint.read import check_sizes
from ckptkit.checkpoint.receipts import certified_from
from ckptkit.core.worker import each_of
from ckptkit.errors import CheckpointNotFoundError, UnusableCheckpointError
from ckptkit.format.documents import Commit
from ckptkit.format.layout import FROZEN, CheckpointName, attempt_key, attempt_of
from ckptkit.run.fence import read_run, refuse_unfinished
from ckptkit.run.index import Lineage, Survey, segment_before
from ckptkit.run.keep_policy import Keepable, KeepPolicy
from ckptkit.run.resolve import Head, choose, newest_head
from ckptkit.storage import Storage


class Rule(NamedTuple):
    """Holds a policy and its text on the command line."""

    words: str
    policy: KeepPolicy


@dataclass(frozen=True)
class Decision:
    """Says what happens to one committed checkpoint.

    Attributes:
        name: Its name.
        size_bytes: Size of the files in its folder.
        goes: Whether it is to be removed.
        why: The reason, in words.
    """

    name: CheckpointName
    size_bytes: int
    goes: bool
    why: str


@dataclass(frozen=True)
class PrunePlan:
    """Lists what is to be removed, from one survey of the run.

    Attributes:
        decisions: One for each committed checkpoint, oldest attempt first.
        remains: Bytes in folders that hold no checkpoint and that no process writes any more.
        frozen: Bytes shared by the checkpoints of an attempt, for attempts that will have no checkpoint left.
        problems: What cannot be read, and so prevents removals.
        commits: Commits of the checkpoints that are to go.
        attempts: Numbers of all attempts that had a document.
        unfinished_bytes: Bytes in folders of saves that may be under way, and so stay.
    """

    decisions: tuple[Decision, ...] = ()
    remains: Mapping[CheckpointName, int] = field(default_factory=dict)
    frozen: Mapping[int, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    commits: Mapping[CheckpointName, Commit] = field(default_factory=dict)
    attempts: frozenset[int] = frozenset()
    unfinished_bytes: int = 0

    @property
    def doomed(self) -> tuple[CheckpointName, ...]:
        """Names of the checkpoints to remove."""
        return tuple(one.name for one in self.decisions if one.goes)

    @property
    def freed_bytes(self) -> int:
        """Bytes freed by the whole plan."""
        folders = sum(one.size_bytes for one in self.decisions if one.goes)
        return folders + sum(self.remains.values()) + sum(self.frozen.values())


def plan_prune(storage: Storage, rules: Sequence[Rule], *, branches: bool, unfinished: bool = False) -> PrunePlan:
    """Make the plan.

    Args:
        storage: The run root.
        rules: A checkpoint of the lineage stays if any rule keeps it. Without rules, all stay.
        branches: Whether checkpoints off the lineage are to go.
        unfinished: Whether no job is running, so that no folder without COMMIT is one of a save that is under way.

    Raises:
        CorruptCheckpointError: If there are checkpoints, and no attempt's document leads to one.
        ResumeError: If the run is an unfinished copy.
        StorageError: If the storage failed.
    """
    survey = Survey(storage)
    refuse_unfinished(storage, survey, read_run(storage))
    choose(survey)  # raises if a start would not know what to do either
    head, _ = newest_head(survey)
    if head is None:
        remains = _remains(survey)
        if unfinished:
            return PrunePlan(remains=remains, attempts=survey.attempts)
        return PrunePlan(attempts=survey.attempts, unfinished_bytes=sum(remains.values()))
    return _Planner(storage, survey, head).plan(rules, branches=branches, unfinished=unfinished)


class _Planner:
    """Decides about each checkpoint, from one survey."""

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
            why = stays.get(name)
            on_lineage = name in self._head
            gone = "no --keep asks for it" if on_lineage else "off the lineage"
            decisions.append(Decision(name, self._bytes(name), why is None, gone if why is None else why))
        doomed = {one.name for one in decisions if one.goes}
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
            for name, found in zip(names, each_of(names, self._metrics), strict=True):
                if isinstance(found, str):
                    stays[name] = "its metrics cannot be read"
                    self._problems.append(found)
                else:
                    metrics[name] = found
        judged = [
            Keepable(str(name), name.cycles, name.micro_step, metrics.get(name, {}), self._is_certified(name))
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
        found: dict[CheckpointName, str] = {}
        sound = 0
        for name in reversed([one for one in self._sound_commits() if one in lineage]):
            fault = self._fault_of_checkpoint(name)
            if fault is None:
                found[name] = "the latest" if not sound else "one of the two newest"
                sound += 1
            else:
                found[name] = "newer than the two newest that can be opened"
            if sound == 2:
                break
        return found

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

    def _is_certified(self, name: CheckpointName) -> bool:
        return bool(certified_from(self._survey.folders.files(name)))

    def _bytes(self, name: CheckpointName) -> int:
        return sum(self._survey.folders.files(name).values())

    def _last_own(self) -> CheckpointName | None:
        """Return the newest attempt's highest commit."""
        return max((name for name in self._committed if name.attempt == self._newest), default=None)

    def _frozen(self, doomed: set[CheckpointName]) -> dict[int, int]:
        if self._last_own() is None:
            return {}  # the newest attempt may be uploading the checkpoint that it began with
        living = {name.attempt for name in self._committed if name not in doomed}
        found: dict[int, int] = {}
        for key, size_bytes in self._storage.walk(f"{FROZEN}/").items():
            number = attempt_of(key)
            if number is not None and number < self._newest and number not in living:
                found[number] = found.get(number, 0) + size_bytes
        shows_end_of = self._survey.folders.shows_end_of
        return {number: size_bytes for number, size_bytes in found.items() if shows_end_of(number)}


def _remains(survey: Survey) -> dict[CheckpointName, int]:
    """Return the bytes of each folder that holds data and no checkpoint."""
    folders = survey.folders
    return {
        name: sum(folders.files(name).values())
        for name in survey.names
        if folders.is_uncommitted(name) or (folders.may_be_void_with_data(name) and not folders.is_committed(name))
    }
