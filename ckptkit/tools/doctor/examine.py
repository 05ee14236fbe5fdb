"""Runs the examination: two uninterrupted lives, then killed and resumed ones, each compared with the first.

Guarantees: stops at the first difference; writes only below the given folder; a life runs no line of the script
before the previous life has ended, except imports of libraries. In a job of many ranks, lives lose one rank or all, and
every rank is compared with itself. Main thread only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ckptkit.tools.doctor.budget import FEWEST_STEPS, Budget, Cost, Fitting, cost_of
from ckptkit.tools.doctor.compare import (
    Difference,
    begun_too_early,
    beyond_the_end,
    first_difference,
    first_unequal_replica,
    kind_of,
    marks_of_process,
    other_losses,
    unstable,
)
from ckptkit.tools.doctor.diagnose import (
    Diagnosis,
    diagnose_disagreement,
    diagnose_resume,
)
from ckptkit.tools.doctor.disagreement import (
    READ_LITTLE,
    Disagreement,
    Race,
    Recording,
    diagnose_emptied_root,
    diagnose_missing_seed,
    diagnose_other_mirror,
    diagnose_unequal_replica,
    reads_ahead,
)
from ckptkit.tools.doctor.elastic import Elastic
from ckptkit.tools.doctor.interruption import Interruptions
from ckptkit.tools.doctor.later import begins_later, diagnose_later, later_difference
from ckptkit.tools.doctor.lives.ahead import modules_ahead
from ckptkit.tools.doctor.lives.process import Started, start_ahead
from ckptkit.tools.doctor.lives.trace import LifePlan
from ckptkit.tools.doctor.lives.trial import Life, live
from ckptkit.tools.doctor.lost import forgotten
from ckptkit.tools.doctor.plan import Part
from ckptkit.tools.doctor.promises import Continuation
from ckptkit.tools.doctor.report import (
    FailedLifeError,
    Options,
    Report,
    UnusableScriptError,
    checked,
    failure_of,
    rank_in_words,
)
from ckptkit.tools.doctor.resumption import Resumption, is_sure


class Examination:
    """Runs one examination of ``command``.

    Args:
        command: The user's command, program first.
        folder: An empty folder for everything that is written.
        options: How to examine.
        others: Run roots of the command that are not examined; of the rest, the first to train is. See `RunByRun`.
        monotonic: Gives seconds.
        begins: Called with a description of the next life, and the number of its micro-steps.
        stepped: Called now and then with the number of micro-steps that the running life has done.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        options: Options,
        *,
        others: Sequence[str] = (),
        monotonic: Callable[[], float],
        begins: Callable[[str, int], None],
        stepped: Callable[[int], None],
    ) -> None:
        self._command = command
        self._folder = folder
        self._options = options
        self._others, self._passed_over = tuple(others), dict.fromkeys(others, 0)
        self._monotonic = monotonic
        self._begins = begins
        self._stepped = stepped
        self._lives: list[Life] = []
        self._ahead = modules_ahead(command, os.environ) if options.ahead else ()
        self._waiting: Started | None = None
        self._budget = Budget(options.within, monotonic)
        self._cost: Cost | None = None  # known after the first life
        self._ignored: frozenset[str] = frozenset()

    def run(self) -> Report:
        """Run all lives, up to the first difference.

        Raises:
            UnusableScriptError: If the script cannot be examined, for lack of a checkpoint manager, of micro-steps or
                of time for one kill.
            FailedLifeError: If a life failed by itself.
            OSError: If the folder cannot be written, or the command cannot be started.
        """
        try:
            return self._run()
        finally:
            self._give_up_waiting()

    def _run(self) -> Report:
        steps, enough = self._options.steps, self._budget.first_ends
        changes = self._options.then is not None
        first = self._live(Part("uninterrupted", "root-1", steps, then=0, enough=enough, changes_ranks=changes))
        unequal = first_unequal_replica(first)
        if unequal is not None:  # first: a save that the script makes itself has ended such a life with an error
            return self._report(first, first.last_step, unequal, diagnose_unequal_replica(unequal))
        done = checked(first, self._others)
        self._passed_over.update(first.paces)  # one may train first in a life that resumes
        emptied = next((one.begun.url for one in first.each_rank if one.begun is not None and one.begun.empties), None)
        if emptied is not None:
            return self._report(first, done, diagnosis=diagnose_emptied_root(emptied))
        fitting = self._fitting(first, done)
        last = fitting.steps
        until = last + begins_later(first, last)
        second = self._live(Part("uninterrupted, once more", "root-2", until, then=None if changes else 0))
        self._ignored = marks_of_process(first, second)
        difference = self._difference(second, first, last)
        if difference is not None:
            return self._report(first, last, difference, self._of_disagreement(difference, last))
        shaky = [unstable(one, other) for one, other in zip(first.each_rank, second.each_rank, strict=True)]
        elastic = self._elastic(first, last)
        notes: dict[str, None] = {}
        interruptions = Interruptions(
            self._options,
            self._folder,
            first,
            fitting=fitting,
            cost=self._cost,
            budget=self._budget,
            live=self._live,
            give_up_waiting=self._give_up_waiting,
        )
        for life, begun in interruptions.lives():
            until = life.planned_kill or last
            diagnosis = self._missing_seed(life, begun)
            difference = self._difference(life, first, until) if diagnosis is None else None
            # What was done again from too early on may well differ; that it was done at all comes first.
            difference = begun_too_early(life, first, begun) or difference or later_difference(life, first, second)
            if difference is not None:
                diagnosis = self._of_resume(difference, shaky[difference.rank or 0])
            if diagnosis is not None:
                return self._report(first, last, difference, diagnosis)
            notes.update(dict.fromkeys(_notes(life, first, until, shaky)))
        race = self._race(first, last, tuple(notes))
        if race is not None:
            return self._report(first, last, race.difference, race.diagnosis())
        report = self._report(first, last, notes=tuple(notes))
        return report if elastic is None else self._continued(report, elastic.run(shaky))

    def _missing_seed(self, life: Life, begun: int) -> Diagnosis | None:
        """Return the diagnosis if ``life``, which failed before it trained, trains with the seed of the first one."""
        if begun == 0 or life.steps or not life.exit_code:
            return None
        self._give_up_waiting()
        root, words = "root-4" if life.own_saves else "root-3", f"from {begun} on, seeded like the first"
        part = Part(words, root, begun + 1, begun=begun, own_saves=life.own_saves, seeded=True)
        return diagnose_missing_seed(life) if self._live(part).last_step > begun else None

    def _race(self, first: Life, last: int, changing: tuple[str, ...]) -> Race | None:
        """Return how a life differs that reads little ahead, if the data have code of the user's.

        On an idle machine, a pipeline may be so far ahead that each life reads all of what training changes before it
        does. What is ``changing`` is named; what cannot be seen, such as memory of C, may be as well.
        """
        if not reads_ahead(first) or not self._may_record():
            return None
        life = self._uninterrupted("read little ahead", last, Recording(settings=(READ_LITTLE,)))
        difference = self._difference(life, first, last)
        if difference is None or kind_of(difference.names) != "batch":
            return None
        return Race(difference, changing, self._folder, self._uninterrupted)

    def _elastic(self, first: Life, last: int) -> Elastic | None:
        """Start the job on the other number of ranks, if one is to be examined.

        Raises:
            UnusableScriptError, FailedLifeError, OSError: As in `Elastic.begin`.
        """
        if self._options.then is None:
            return None
        compare = self._difference
        elastic = Elastic(self._options.then, self._folder, first, last, live=self._live, difference=compare)
        elastic.begin()
        return elastic

    def _continued(self, report: Report, found: Continuation) -> Report:
        return replace(
            report,
            lives=tuple(self._lives),
            compared=report.compared + found.compared,
            difference=found.difference,
            diagnosis=found.diagnosis,
            seconds=self._budget.spent,
            continuation=found,
        )

    def _give_up_waiting(self) -> None:
        """End the process that waits at its gate, if one does: another life than the expected one comes next."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.end()
            waiting.log.unlink(missing_ok=True)

    def _fitting(self, first: Life, done: int) -> Fitting:
        """Return how many micro-steps and kills there is time for.

        Raises:
            UnusableScriptError: If there is not enough for one kill.
        """
        kills = self._options.kills
        if self._options.within is None:
            return Fitting(done, kills)
        self._cost = cost_of(first)
        own_saves = self._options.own_saves
        fitting = self._budget.fit(self._cost, done, kills, own_saves=own_saves)
        if fitting is None:
            raise UnusableScriptError(
                f"{self._budget.total:.0f} s are not enough for one kill: a life takes {self._cost}, and "
                f"{'six' if own_saves else 'four'} lives of {FEWEST_STEPS} micro-steps are needed. Allow "
                f"{math.ceil(self._budget.needed(self._cost, own_saves=own_saves))} s or more"
            )
        return fitting

    def _of_disagreement(self, difference: Difference, last: int) -> Diagnosis:
        guess = diagnose_disagreement(difference)
        if not self._may_record():
            return guess
        return Disagreement(difference, guess, self._folder, last, self._uninterrupted, first_difference).diagnosis()

    def _of_resume(self, difference: Difference, shaky: frozenset[str]) -> Diagnosis:
        if difference.url is not None:
            return diagnose_later(difference, shaky)
        before = self._lives[-2]
        if before.begun is not None and before.begun.mirrors and not difference.resumed_at:  # its root was removed
            return diagnose_other_mirror(difference.life, before)
        found = diagnose_resume(difference, shaky)
        is_known = is_sure(found, difference) or difference.found is None or not difference.resumed_at
        if is_known or not self._may_record():
            return found
        return Resumption(difference, found, self._folder, self._recorded).diagnosis()

    def _may_record(self) -> bool:
        """Return whether further lives may look for the cause: of one rank only, and not against a time limit."""
        self._give_up_waiting()
        return len(self._lives[0].each_rank) == 1 and self._options.within is None

    def _recorded(self, words: str, begun: int, stop: int, recording: Recording) -> Life:
        return self._live(Part(words, "root-5", stop, begun=begun, recording=recording))

    def _uninterrupted(self, words: str, stop: int, recording: Recording) -> Life:
        return self._live(Part(words, f"root-of-{len(self._lives) + 1:03d}", stop, recording=recording))

    def _live(self, part: Part) -> Life:
        self._begins(part.words, (part.death.kill if part.death else part.stop) - part.begun)
        name = self._name(1)
        plan = LifePlan(
            root=str(self._folder / part.root),
            others=self._passed_over,
            trace=str(self._folder / f"{name}.trace"),
            stop=part.stop,
            enough=part.enough,
            saves=part.every_save,
            kill=part.death.kill if part.death else None,
            kill_ranks=part.who,
            seed=self._options.seed if part.seeded else self._seed(part.begun),
            own_saves=part.own_saves,
            kill_when_saved=part.kill_when_saved,
            record=None if part.recording.file is None else str(part.recording.file),
            record_after=part.recording.after,
            settings=part.recording.settings,
            changes_ranks=part.changes_ranks,
        )
        started, self._waiting = self._waiting, None
        life = live(
            part.command or self._command,
            name,
            plan,
            time_limit=self._budget.limit(self._options.time_limit),
            monotonic=self._monotonic,
            on_step=self._stepped,
            started=started,
            ahead=() if part.command else self._ahead,
            at_gate=lambda: self._start_next(part.then),
        )
        life = replace(life, elsewhere=part.command is not None)
        ranks = len(life.each_rank)
        if self._lives and not life.elsewhere and life.begun is not None and ranks != len(self._lives[0].each_rank):
            raise UnusableScriptError(
                f"the job had {len(self._lives[0].each_rank)} ranks in its first life and {ranks} in "
                f"{life.name}; start it with the same number each time"
            )
        self._lives.append(life)
        if life.exit_code is None and self._budget.is_over:
            raise UnusableScriptError(self._out_of_time(life))
        return life

    def _out_of_time(self, life: Life) -> str:
        known = "" if self._cost is None else f"; the first life took {self._cost}"
        kills = sum(one.planned_kill is not None for one in self._lives[:-1])
        return (
            f"{self._budget.total:.0f} s were over in {life.name} after {life.last_step} micro-steps and {kills} kills"
            f"{known}. Allow more time"
        )

    def _start_next(self, begins_at: int | None) -> None:
        """Start the life after the running one, which has shown that such a process waits at its gate."""
        if begins_at is not None:
            name, seed = self._name(2), self._seed(begins_at)
            self._waiting = start_ahead(self._command, name, self._folder, seed, self._ahead)

    def _name(self, coming: int) -> str:
        return f"life-{len(self._lives) + coming:03d}"

    def _seed(self, begun: int) -> int | None:
        return None if begun else self._options.seed

    def _difference(self, life: Life, first: Life, until: int) -> Difference | None:
        difference = first_difference(life, first, until, self._ignored) or beyond_the_end(life, first, until)
        is_found = difference is not None and (difference.found is not None or life.failed_in_training)
        if not life.ended_as_planned and not is_found:
            raise FailedLifeError(failure_of(life), life)
        return difference

    def _report(
        self,
        first: Life,
        last: int,
        difference: Difference | None = None,
        diagnosis: Diagnosis | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        lives = [life for life in self._lives[1:] if not life.elsewhere]
        losses = {step for life in lives for step in other_losses(life, first, min(life.last_step, last))}
        return Report(
            url="" if first.begun is None else first.begun.url,
            others=tuple(one for one in first.others if one not in self._others),
            untrained=tuple(one for one in first.passed_over if one not in first.others),
            steps=last,
            lives=tuple(self._lives),
            compared=sum(map(_compared, lives)),
            values=len(first.steps[first.last_step].digests),
            difference=difference,
            diagnosis=diagnosis,
            other_losses=tuple(sorted(losses)),
            notes=notes,
            ranks=len(first.each_rank),
            seconds=self._budget.spent,
        )


def _notes(life: Life, first: Life, until: int, shaky: Sequence[frozenset[str]]) -> list[str]:
    """Return what is in no checkpoint and differs at the end of an equal life, as paths; with their rank if many."""
    found = []
    for mine, its, paths in zip(life.each_rank, first.each_rank, shaky, strict=True):
        if mine.begun is not None and mine.begun.step and until in mine.steps:
            at_end = Difference(until, (), its.steps[until], mine.steps[until], mine, its)
            found += [f"{rank_in_words(mine.rank)}{one}" for one in forgotten(at_end, paths)]
    return found


def _compared(life: Life) -> int:
    # After a kill of one rank, others may go on for a moment.
    until = life.planned_kill or life.last_step
    return sum(step <= until for one in life.each_rank for step in one.steps)
