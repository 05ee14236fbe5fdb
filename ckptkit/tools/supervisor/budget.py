"""Decides after each life whether there is another one.

Guarantees: a life that commits more than any before it is free. Two deaths in the same micro-step are code or data,
since every life repeats the same bits. An error about data is known by its message: pipelines read ahead, so that it
comes up earlier or later. A death that comes from outside (a SIGKILL, a hang, a lack of memory) counts for that only if
at least one of the two lives had trained before it: a machine that dies again in the same compilation proves nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ckptkit.core.text import many
from ckptkit.manager.heartbeat.record import Phase, Record
from ckptkit.tools.supervisor.diagnosis import LifeFinding, place_of
from ckptkit.tools.supervisor.life import SupervisedLife

DONE = 0
WRONG_USAGE = 2
CODE_OR_DATA = 65  # EX_DATAERR: the same command would fail again
GIVEN_UP = 75  # EX_TEMPFAIL: it may succeed elsewhere, or later
PREEMPTED = 143

_OUTSIDE = ("killed", "hang", "out-of-memory")
_OF_THE_PLACE = (*_OUTSIDE, "exception", "data", "crash", "exit")
_FINAL = ("overtaken", "refused")
_THREE = 3
_NO_PROGRAM = (126, 127)  # a shell's: cannot be executed, not found


@dataclass(frozen=True)
class RestartDecision:
    """Says what follows a life."""

    finding: LifeFinding  # why it ended; more is known here than of a single life
    exit_code: int | None  # of ``ckptkit run``; None if another life follows
    next_move: str  # the same for people
    in_a_row: int = 0  # lives without progress up to here


class RestartBudget:
    """Counts the lives without progress, so many of which in a row are the last, and remembers where lives died."""

    def __init__(self, lives_without_progress: int) -> None:
        self._most = lives_without_progress
        self._in_a_row = 0
        self._same: list[LifeFinding] = []  # of the lives in a row that did not get to training
        self._best: dict[bytes, int] = {}  # by root
        self._deaths: dict[tuple[bytes, int | str], dict[int, bool]] = {}  # numbers of lives, and whether each proves

    def judge(self, life: SupervisedLife, finding: LifeFinding) -> RestartDecision:
        """Return what follows ``life``."""
        last = _end_of(life, finding)
        if last is not None:
            return last
        progress = self._note_progress(life.records)
        self._same = [*self._same, finding][-self._most :] if not life.records else []
        numbers = self._died_there_before(life, finding)
        if numbers is not None:
            return RestartDecision(_code_or_data(finding, numbers), CODE_OR_DATA, _MOVES["code-or-data"])
        self._in_a_row = 0 if progress else self._in_a_row + 1
        if self._in_a_row >= self._most:
            if self._is_same_before_training():
                same = many(len(self._same), "life", "lives")
                what = f"{same} in a row ended before training with the same error: {finding.what}"
                return RestartDecision(replace(finding, cause="code-or-data", what=what), CODE_OR_DATA, _CORRECT)
            why = f"{many(self._in_a_row, 'life', 'lives')} in a row committed nothing new"
            return RestartDecision(finding, GIVEN_UP, f"{why}: {_MOVES.get(finding.cause, _LOOK)}", self._in_a_row)
        return RestartDecision(finding, None, "restart", self._in_a_row)

    def _note_progress(self, records: Sequence[Record]) -> bool:
        """Note what was committed; return whether it is more than before, in any of the runs of the command."""
        more = False
        for root in {record.root for record in records}:
            own = [record for record in records if record.root == root]
            before = max([self._best.get(root, -1), *(record.restored_step for record in own)])
            self._best[root] = max([before, *(record.committed_step for record in own)])
            more = more or self._best[root] > before
        return more

    def _is_same_before_training(self) -> bool:
        """Return whether the last lives all ended before training, and with the same exception."""
        same = {(finding.cause, finding.what) for finding in self._same}
        return len(self._same) == self._most and same == {("exception", self._same[0].what)}

    def _died_there_before(self, life: SupervisedLife, finding: LifeFinding) -> list[int] | None:
        """Return the numbers of the lives that died in the same micro-step as this one, if that proves something."""
        record = finding.record
        if record is None or finding.cause not in _OF_THE_PLACE or not _is_at_a_batch(record):
            return None
        trained = record.last_phase is Phase.TRAINING and record.micro_step > record.restored_step
        place = record.text("message") if finding.cause == "data" else record.micro_step
        deaths = self._deaths.setdefault((record.root, place), {})
        deaths[life.number] = finding.cause not in _OUTSIDE or trained
        is_proven = len(deaths) >= _THREE or (len(deaths) > 1 and any(deaths.values()))
        return [*deaths] if is_proven else None


def _is_at_a_batch(record: Record) -> bool:
    return record.micro_step >= 0 and record.last_phase not in (Phase.STARTING, Phase.RESTORING, Phase.ENDED)


def _end_of(life: SupervisedLife, finding: LifeFinding) -> RestartDecision | None:
    """Return the decision if the life alone decides that no other one follows."""
    if finding.cause == "finished":
        return RestartDecision(finding, DONE, "done")
    if finding.cause in ("preempted", "interrupted"):
        is_typed = finding.cause == "interrupted" and life.asked in (signal.SIGINT, signal.SIGQUIT)
        code = 128 + life.asked if is_typed and life.asked is not None else PREEMPTED
        return RestartDecision(finding, code, "the same command continues the run")
    if finding.cause == "usage" or (not life.records and life.returncode in _NO_PROGRAM):
        return RestartDecision(finding, WRONG_USAGE, "correct the command")
    return RestartDecision(finding, CODE_OR_DATA, _MOVES[finding.cause]) if finding.cause in _FINAL else None


def _code_or_data(finding: LifeFinding, lives: Sequence[int]) -> LifeFinding:
    assert finding.record is not None  # noqa: S101 - only then is the place known
    where = "of the same data, at last" if finding.cause == "data" else "from the same bits,"
    died = f"lives {', '.join(map(str, lives))} died {where} {place_of(finding.record)}"
    return replace(finding, cause="code-or-data", what=f"{died}: {finding.what}", where="")


_LOOK = "look at the last lines that it printed"
_CORRECT = "correct what it names; a restart fails again"
_MOVES = {
    "outage": "check the network, and the storage that the message is about, and start the same command again",
    "overtaken": "another process trains this run; do not start this one again",
    "refused": "a restart cannot help; the message says what to change",
    "code-or-data": "correct the code or the data there; a restart repeats the same bits",
    "data": "look at the file or the function that the message names",
    "disk-full": "free some space (`df -h`), and start the same command again",
    "storage": "check whether the storage answers (`ckptkit ls ROOT`), and start the same command again",
    "out-of-memory": "give the job more memory, or use less (fewer data workers, smaller batches)",
    "killed": "find out who kills it (`dmesg`, the scheduler's log)",
    "crash": "look at the stacks in `ckptkit report`, and at the versions of the libraries",
    "hang": "look at the stacks that were stored with the events",
}
