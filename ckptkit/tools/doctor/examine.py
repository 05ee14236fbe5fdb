"""Runs the examination: two uninterrupted lives, then killed and resumed ones, each compared with the first.

Guarantees: stops at the first difference; writes only below the given folder. Main thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ckptkit.tools.doctor.compare import Difference, first_difference, other_losses, unstable
from ckptkit.tools.doctor.diagnose import UNKNOWN, Diagnosis, diagnose_disagreement, diagnose_resume, forgotten
from ckptkit.tools.doctor.disagreement import Disagreement, Recording
from ckptkit.tools.doctor.plan import Death, plan_deaths
from ckptkit.tools.doctor.probe import LifePlan
from ckptkit.tools.doctor.resumption import Resumption
from ckptkit.tools.doctor.trial import Life, live

_NOTHING = Recording()


@dataclass(frozen=True)
class Options:
    """Says how to examine.

    Attributes:
        steps: Micro-steps to do.
        kills: How many lives are killed.
        every_micro_step: Kill after each micro-step instead.
        seed: Seed of every life that begins the training; a life that resumes gets none, like a real restart.
        time_limit: Limit for each life.
    """

    steps: int = 24
    kills: int = 4
    every_micro_step: bool = False
    seed: int = 1
    time_limit: timedelta = timedelta(hours=1)


@dataclass(frozen=True)
class Report:
    """Holds the result.

    Attributes:
        steps: Micro-steps of the uninterrupted run.
        lives: Every life, in order.
        compared: Micro-steps that were compared with the first life's.
        values: Digests in each of them.
        difference: The first one, or None.
        diagnosis: Diagnosis of the difference.
        other_losses: Micro-steps whose reported loss differed in some life, while nothing that training depends on did.
        notes: Values in no checkpoint that a resume changed, although all that was compared stayed equal.
    """

    steps: int
    lives: tuple[Life, ...]
    compared: int
    values: int
    difference: Difference | None = None
    diagnosis: Diagnosis | None = None
    other_losses: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


class UnusableScriptError(Exception):
    """Raised if the script cannot be examined; says why and what to do."""


class FailedLifeError(Exception):
    """Raised if a life did not end as planned and no difference explains it; shows its last output."""

    def __init__(self, message: str, life: Life) -> None:
        super().__init__(f"{message}. Its last output:\n{life.last_words()}")


class Examination:
    """Runs one examination of ``command``.

    Args:
        command: The user's command, program first.
        folder: An empty folder for everything that is written.
        options: How to examine.
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
        monotonic: Callable[[], float],
        begins: Callable[[str, int], None],
        stepped: Callable[[int], None],
    ) -> None:
        self._command = command
        self._folder = folder
        self._options = options
        self._monotonic = monotonic
        self._begins = begins
        self._stepped = stepped
        self._lives: list[Life] = []

    def run(self) -> Report:
        """Run all lives, up to the first difference.

        Raises:
            UnusableScriptError: If the script cannot be examined, for lack of a checkpoint manager or of micro-steps.
            FailedLifeError: If a life failed by itself.
            OSError: If the folder cannot be written, or the command cannot be started.
        """
        first = self._live("uninterrupted", "root-1", self._options.steps)
        last = _checked(first)
        second = self._live("uninterrupted, once more", "root-2", last)
        difference = self._difference(second, first, last)
        if difference is not None:
            guess = diagnose_disagreement(difference)
            pair = Disagreement(difference, guess, self._folder, last, self._uninterrupted, first_difference)
            return self._report(first, difference, pair.diagnosis())
        shaky = unstable(first, second)
        notes: dict[str, None] = {}
        for life, begun in self._interrupted(first):
            until = life.planned_kill or last
            difference = self._difference(life, first, until)
            # What was done again from too early on may well differ; that it was done at all comes first.
            difference = _begun_too_early(life, first, begun) or difference
            if difference is not None:
                return self._report(first, difference, self._of_resume(difference, shaky))
            if life.begun is not None and life.begun.step and until in life.steps:
                at_end = Difference(until, (), first.steps[until], life.steps[until], life, first)
                notes.update(dict.fromkeys(forgotten(at_end, shaky)))
        return self._report(first, notes=tuple(notes))

    def _interrupted(self, first: Life) -> Iterator[tuple[Life, int]]:
        """Run, on demand, the lives of one run that is killed and resumed; yield each with where it had to begin."""
        at = [first.steps[step].progress for step in sorted(first.steps)]
        begun = 0
        for death in plan_deaths(at, self._options.kills, every_micro_step=self._options.every_micro_step):
            words = f"from {begun} on; save after {death.save}, SIGKILL after {death.kill}"
            yield self._live(words, "root-3", first.last_step, death, begun=begun), begun
            begun = death.save
        yield self._live(f"from {begun} on, to the end", "root-3", first.last_step, begun=begun), begun

    def _of_resume(self, difference: Difference, shaky: frozenset[str]) -> Diagnosis:
        found = diagnose_resume(difference, shaky)
        if found.code != UNKNOWN or difference.found is None or not difference.resumed_at:
            return found
        return Resumption(difference, found, self._folder, self._recorded).diagnosis()

    def _recorded(self, words: str, begun: int, stop: int, recording: Recording) -> Life:
        return self._live(words, "root-4", stop, begun=begun, recording=recording)

    def _uninterrupted(self, words: str, stop: int, recording: Recording) -> Life:
        return self._live(words, f"root-of-{len(self._lives) + 1:03d}", stop, recording=recording)

    def _live(
        self,
        words: str,
        root: str,
        stop: int,
        death: Death | None = None,
        *,
        begun: int = 0,
        recording: Recording = _NOTHING,
    ) -> Life:
        self._begins(words, (death.kill if death else stop) - begun)
        name = f"life-{len(self._lives) + 1:03d}"
        plan = LifePlan(
            root=str(self._folder / root),
            trace=str(self._folder / f"{name}.trace"),
            stop=stop,
            saves=(death.save,) if death else (recording.save,) if recording.save else (),
            kill=death.kill if death else None,
            seed=None if begun else self._options.seed,
            record=None if recording.file is None else str(recording.file),
            record_after=recording.after,
            settings=recording.settings,
        )
        limit, clock = self._options.time_limit, self._monotonic
        life = live(self._command, name, plan, time_limit=limit, monotonic=clock, on_step=self._stepped)
        self._lives.append(life)
        return life

    def _difference(self, life: Life, first: Life, until: int) -> Difference | None:
        difference = first_difference(life, first, until)
        if not life.ended_as_planned and (difference is None or difference.found is None):
            raise FailedLifeError(_failure(life), life)
        return difference

    def _report(
        self,
        first: Life,
        difference: Difference | None = None,
        diagnosis: Diagnosis | None = None,
        notes: tuple[str, ...] = (),
    ) -> Report:
        losses = {step for life in self._lives[1:] for step in other_losses(life, first, life.last_step)}
        compared = sum(len(life.steps) for life in self._lives[1:])
        values = len(first.steps[first.last_step].digests)
        lives = tuple(self._lives)
        return Report(first.last_step, lives, compared, values, difference, diagnosis, tuple(sorted(losses)), notes)


def _checked(first: Life) -> int:
    """Return the last micro-step of the first life; refuse a life that shows nothing."""
    if first.refused is not None:
        raise UnusableScriptError(f"the script cannot be examined: {first.refused}")
    if first.begun is None:
        if first.exit_code != 0:
            raise FailedLifeError(f"{_failure(first)}; it had not reached a CheckpointCallback or manager yet", first)
        raise UnusableScriptError(
            "the script used no CheckpointCallback and no CheckpointManager. Add one, as in `ckpt.train(model, epochs, "
            "dataset)`, so that there is something to resume"
        )
    if not first.ended_as_planned:
        raise FailedLifeError(_failure(first), first)
    if first.last_step < 2 or len(first.steps) != first.last_step:
        raise UnusableScriptError(
            f"the script called CheckpointManager.step after {len(first.steps)} micro-steps, and the last one was "
            f"number {first.last_step}. Call it after every micro-step, and let the script train at least two"
        )
    return first.last_step


def _begun_too_early(life: Life, first: Life, begun: int) -> Difference | None:
    """Return whether a life repeated, as if new, what a checkpoint held already."""
    if life.begun is None or life.begun.step >= begun:
        return None
    return Difference(begun + 1, (), first.steps[begun + 1], None, life, first)


def _failure(life: Life) -> str:
    if life.exit_code is None:
        return f"{life.name} did not finish in time and was stopped after {life.last_step} micro-steps"
    restart = "; it was started like a restart, without the seeds that the doctor sets in the earlier lives"
    return (
        f"{life.name} ended with exit code {life.exit_code} after {life.last_step} micro-steps"
        f"{'' if life.seeded else restart}"
    )
